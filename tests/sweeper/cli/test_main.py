"""The list of commands and their help: complete and consistent."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
import typer
from typer.testing import CliRunner

from sweeper.cli.main import MOST_WORDS, app
from tests.patience import patient

PROGRAM = typer.main.get_command(app).commands  # type: ignore[attr-defined]
COMMANDS = {name: each for name, each in PROGRAM.items() if name != "cluster"}


def test_the_list_of_commands_has_whole_sentences() -> None:
    text = CliRunner().invoke(app, ["--help"], terminal_width=80).output
    assert len(text.splitlines()) <= 54 and all(len(line) <= 80 for line in text.splitlines()), "one screen"
    flat = " ".join(text.split())
    for name, command in COMMANDS.items():
        first = (command.help or "").split("\n")[0].partition(". ")[0].rstrip(".")
        first = first if len(first) <= MOST_WORDS else first.partition(": ")[0]
        assert (f"{name} {first}." in flat) != command.hidden, name
    assert [name for name, each in COMMANDS.items() if each.hidden] == ["list", "logs", "token"]
    assert "..." not in text.replace("[OPTIONS] COMMAND [ARGS]...", "") and "…" not in text


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_says_what_it_sets_and_its_default(name: str) -> None:
    for parameter in COMMANDS[name].params:
        if parameter.name == "help" or not isinstance(parameter, click.Option):
            continue
        assert (parameter.help and parameter.help[0].isupper()) or parameter.help[0] in "'lh", (name, parameter.name)
        assert parameter.help.rstrip("]").rstrip().endswith((".", ")", "…")), (name, parameter.name, parameter.help)
        told = parameter.show_default or parameter.default is not None or parameter.required or parameter.is_flag
        assert told or parameter.envvar or parameter.name == "cluster", (name, parameter.name)


@pytest.mark.parametrize("left", [60, 90, 200])  # MiB: without the check the first two never ended
def test_what_needs_more_address_space_than_is_left_is_refused(left: int) -> None:
    program = f"""
import mmap, resource, numpy
from pathlib import Path
from sweeper.cli.main import spare_address_space
spare_address_space()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
held = mmap.mmap(-1, resource.getrlimit(resource.RLIMIT_AS)[0] - used - {left} * 2**20)
try:
    import scipy.special
except MemoryError as error:
    print(error)
"""
    command = ["sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60))
    assert done.stdout.startswith("scipy needs 256 MiB of address space and "), done.stderr


def test_options_of_the_last_release_are_taken_under_their_old_names() -> None:
    for words, said in (
        (["run", "quickstart", "--address=x", "--executor", "local"], "omit --executor local, or --ray"),
        (["status", "--address", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["claims", "nothing", "--json"], "nothing"),
        (["show", "nothing", "--page", "x.html"], "nothing"),
    ):
        done = CliRunner().invoke(app, words)
        assert "No such option" not in done.output, done.output
        assert said in f"{done.output} {done.exception}", words
    assert "--address" not in CliRunner().invoke(app, ["run", "--help"]).output
    assert "No such option" in CliRunner().invoke(app, ["validate", "x", "--json"]).output

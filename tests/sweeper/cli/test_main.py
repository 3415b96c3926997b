"""The list of commands and their help: complete and consistent."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from sweeper.api import SUBCOMMANDS
from sweeper.cli.main import MOST_WORDS, app, refuse_what_is_no_text
from sweeper.core.errors import SweeperError
from tests.patience import patient

PROGRAM = typer.main.get_command(app).commands  # type: ignore[attr-defined]
GROUPS = {name: command.commands for name, command in PROGRAM.items() if name in SUBCOMMANDS}
COMMANDS = {name: command for name, command in PROGRAM.items() if name not in GROUPS}
ALL = COMMANDS | {f"{group} {name}": made for group, held in GROUPS.items() for name, made in held.items()}


def test_the_list_of_commands_has_whole_sentences() -> None:
    text = CliRunner().invoke(app, ["--help"], terminal_width=80).output
    assert len(text.splitlines()) <= 54 and all(len(line) <= 80 for line in text.splitlines()), "one screen"
    flat = " ".join(text.split())
    for name, command in COMMANDS.items():
        first = (command.help or "").split("\n")[0].partition(". ")[0].rstrip(".")
        first = first if len(first) <= MOST_WORDS else first.partition(": ")[0]
        assert f"{name} {first}." in flat, name
    assert len(PROGRAM) <= 26 and not [name for name, command in ALL.items() if command.hidden]
    assert "..." not in text.replace("[OPTIONS] COMMAND [ARGS]...", "") and "…" not in text


def test_one_table_of_the_documentation_has_every_command() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| `([a-z -]+)` \|", page, re.MULTILINE)) == sorted(ALL)


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_option_says_what_it_sets_and_its_default(name: str) -> None:
    assert any(parameter.name == "form" for parameter in ALL[name].params), "--format json"
    for parameter in ALL[name].params:
        if parameter.name == "help" or not isinstance(parameter, click.Option):
            continue
        assert (parameter.help and parameter.help[0].isupper()) or parameter.help[0] in "'lh", (name, parameter.name)
        assert parameter.help.rstrip("]").rstrip().endswith((".", ")", "…")), (name, parameter.name, parameter.help)
        told = parameter.show_default or parameter.default is not None or parameter.required or parameter.is_flag
        assert told or parameter.envvar or parameter.name == "cluster", (name, parameter.name)


@pytest.mark.parametrize("argument", [b"SELECT '\xff'", b"caf\xe9.yaml"])
def test_an_argument_that_is_no_text_is_refused(argument: bytes) -> None:
    refuse_what_is_no_text(["results", "γ.yaml", "--sql", "SELECT 'γ'"])
    with pytest.raises(SweeperError, match=r"\\x.. is not UTF-8|\\x..(.)* is not UTF-8"):
        refuse_what_is_no_text(["results", os.fsdecode(argument)])


@pytest.mark.parametrize("left", [60, 90, 200])  # MiB: without the check the first two never ended
def test_what_needs_more_address_space_than_is_left_is_refused(left: int) -> None:
    program = f"""
import mmap, resource, numpy
from pathlib import Path
from sweeper.cli.main import refuse_what_would_hang
refuse_what_would_hang()
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


def test_an_unknown_format_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "quickstart", "--output", str(tmp_path / "results"), "--format", "xml"])
    assert "unknown format 'xml'" in str(done.exception) and not (tmp_path / "results").exists()


def test_an_installed_package_adds_a_command(tmp_path: Path) -> None:
    """One that runs, one that cannot be imported, and one that has a name of ours, which stays ours."""
    facts = tmp_path / "audits-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: audits\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[sweeper.commands]\naudit-all = audits:audit_all\nbroken = audits_missing:go\ndoctor = audits:audit_all\n"
    )
    (tmp_path / "audits.py").write_text(
        "from __future__ import annotations\n\n\ndef audit_all(name: str, *, deep: bool = False) -> str:\n"
        '    """Audit everything.\n\n    Args:\n        name: Whom to audit.\n        deep: Look closer.\n    """\n'
        '    return f"{name} {deep}"\n'
    )
    program = [
        sys.executable,
        "-c",
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from sweeper.cli.main import main; main()",
    ]

    def said(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*program, str(tmp_path), *words], capture_output=True, text=True, timeout=patient(60))

    done = said("audit-all", "everyone", "--deep")
    assert done.stdout == "everyone True\n", done.stderr
    helped = said("--help")
    assert helped.returncode == 0 and "Audit everything." in helped.stdout
    assert "Check that this machine can run sweeps." in helped.stdout
    assert "'broken' of audits_missing:go cannot be imported" in helped.stderr and "'doctor'" in helped.stderr


def test_numbers_of_a_papers_figure_are_json() -> None:
    done = CliRunner().invoke(app, ["paper", "confidence", "--format", "json"])
    assert {"classes", "gamma", "confidence", "probability"} <= json.loads(done.stdout)[0].keys()
    items = CliRunner().invoke(app, ["paper", "mukhoti", "--items", "--format", "json"])
    assert any(row["item"] == "Fig. 1" for row in json.loads(items.stdout))

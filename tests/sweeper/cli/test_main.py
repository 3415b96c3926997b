"""The list of commands and their help: complete and consistent."""

from __future__ import annotations

import click
import pytest
import typer
from typer.testing import CliRunner

from sweeper.cli.main import app

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_the_list_of_commands_has_whole_sentences() -> None:
    text = CliRunner().invoke(app, ["--help"], terminal_width=100).output
    flat = " ".join(text.split())
    for name, command in COMMANDS.items():
        first = (command.help or "").split("\n")[0].partition(". ")[0].rstrip(".")
        assert f"{name} {first}." in flat, name
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

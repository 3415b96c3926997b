"""The command line's entry point. Data goes to stdout, progress and errors to stderr.

Exit status: 0 done; 1 the sweep has failed trials or was stopped; 2 bad input.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from sweeper.cli import (
    analysis,
    export,
    housekeeping,
    papers,
    predictive,
    reading,
    remote,
    status,
    surroundings,
    sweeps,
)
from sweeper.cli.common import DONE
from sweeper.core.errors import SweeperError
from trainables.worker.object_store import StoreError


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, for the list of commands."""
    return text.strip().split("\n")[0].partition(". ")[0].removesuffix(".") + "."


app = typer.Typer(
    name="sweeper",
    help="Sweep loss families, γ, coverage, ν and architectures; measure calibration and curvature at every rung.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)
for group in (sweeps, status, reading, analysis, papers, predictive, export, housekeeping, surroundings, remote):
    for command in group.commands.registered_commands:
        # In full: a list of commands would cut it at 45 characters.
        command.short_help = first_sentence(command.callback.__doc__ or "")
    app.add_typer(group.commands)


def main() -> None:
    """Run the command line; a `SweeperError` becomes a message and an exit status, never a traceback."""
    try:
        app()
    except (SweeperError, StoreError) as error:
        sys.stdout.flush()
        Console(stderr=True, highlight=False).print(f"error: {error}", markup=False, soft_wrap=True)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:
        # The reader of the pipe (head, less) has closed it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(DONE) from None


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"sweeper {version('calibration-sweeper')}")
        raise typer.Exit(DONE)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Accept the options that come before a command."""

"""The command for a whole paper: `paper`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.common import Rehearse
from sweeper.cli.run_options import Running, runs_trials

commands = typer.Typer()


@commands.command()
@runs_trials
def paper(
    name: Annotated[str, typer.Argument(help="Paper: curvature, properness, mukhoti, posterior or selective.")],
    rehearse: Rehearse = False,
    no_run: Annotated[bool, typer.Option("--no-run", help="Run nothing; write the page from existing sweeps.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Path of the page.", show_default="paper-NAME.html in the results")
    ] = None,
    *,
    running: Running,
) -> None:
    """Reproduce a paper: run what is missing, fill its tables and figures, judge its claims, and write one page.

    Sweeps that follow the paper's recipes are used under whatever name; unfinished ones are resumed.
    """
    from sweeper.api.papers import run_paper

    found = run_paper(
        name,
        rehearse=rehearse,
        run=not no_run,
        page=page,
        say=lambda sentence: typer.echo(sentence, err=True),
        **running,
    )
    for line in found.lines():
        typer.echo(line)

"""The commands that use the stored predictions of finished networks: `ensemble`, `conformal`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli.common import RESULTS, Name, Output, show
from sweeper.remote.reach import here

commands = typer.Typer()


@commands.command()
def ensemble(
    name: Name,
    size: Annotated[int, typer.Option(min=1, max=1000, help="Members of the largest greedy ensemble.")] = 10,
    candidates: Annotated[int, typer.Option(min=1, help="Best configurations to choose members from.")] = 50,
    picture: Annotated[
        Path | None,
        typer.Option(help="Also write a figure, test NLL against members, to this HTML file.", show_default="none"),
    ] = None,
    output: Output = RESULTS,
) -> None:
    """Average the predictions of finished networks: replicates, and greedy ensembles. Nothing is retrained."""
    from sweeper.analysis.predictive.ensemble import ensembles, view, write_picture
    from sweeper.results import load

    rows = ensembles(load(*here(name, output)), size=size, candidates=candidates)
    if picture is not None:
        write_picture(rows, picture)
    show(view(rows))


@commands.command()
def conformal(
    name: Name,
    alpha: Annotated[float, typer.Option(help="Share of sets that may miss the truth, between 0 and 1.")] = 0.1,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="Post-hoc method to apply first (see `sweeper spaces --posthoc`).",
            show_default="none",
        ),
    ] = None,
    output: Output = RESULTS,
) -> None:
    """Show coverage and size of the best configuration's conformal prediction sets: THR, APS and RAPS."""
    from sweeper.analysis.predictive.conformal import conformal_sets, view
    from sweeper.results import load

    show(view(conformal_sets(load(*here(name, output)), alpha=alpha, method=method)))

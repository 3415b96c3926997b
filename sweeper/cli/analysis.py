"""The commands that ask more of sweeps than their results: `compare`, `claims`, `recalibrate`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sweeper.cli.common import RESULTS, Name, Output, show
from sweeper.cli.completion import complete_sweep
from sweeper.remote.reach import all_here, here

commands = typer.Typer()

AFTERWARDS_SQL = (
    "select trial, method, options, bins, avg(ece), avg(nll), avg(temperature) from recalibrations "
    "where split = 'test' group by all order by all"
)


@commands.command()
def compare(
    first: Name,
    second: Annotated[str, typer.Argument(help="Another sweep's name or path.", autocompletion=complete_sweep)],
    output: Output = RESULTS,
) -> None:
    """Say what differs between two sweeps: what was asked, what it ran on, what came out, pair by pair."""
    from sweeper.analysis.comparison.compare import compare as compare_sweeps
    from sweeper.analysis.comparison.view import view
    from sweeper.results import load

    (first, second), folder = all_here([first, second], output)
    show(view(compare_sweeps(load(first, folder), load(second, folder))))


@commands.command()
def claims(
    name: Annotated[str | None, typer.Argument(help="A sweep's name or path; every claim's rule if unset.")] = None,
    claim: Annotated[
        list[str] | None, typer.Option("--claim", help="A claim; those of the sweep's header if unset; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    output: Output = RESULTS,
) -> None:
    """Judge papers' claims on a sweep: holds, does not hold or undecided, by rules fixed beforehand."""
    from sweeper.analysis.judging import claims_table, judge_claims, verdict_lines
    from sweeper.results import load

    if name is None:
        show(claims_table())
        return
    found = load(*here(name, output))
    verdicts = judge_claims(found, claim)
    if as_json:
        typer.echo(json.dumps([{**v.to_dict(), "rehearsal": bool(found.rehearsed)} for v in verdicts], indent=2))
    else:
        typer.echo("\n".join(verdict_lines(verdicts, rehearsal=bool(found.rehearsed))))


@commands.command()
def recalibrate(
    name: Name,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", help="A post-hoc method (sweeper spaces --posthoc); repeatable."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="key=value, or method.key=value for one method; repeatable.")
    ] = None,
    bins: Annotated[
        list[int] | None, typer.Option(help="Bins of the calibration errors, the sweep's if unset; repeatable.")
    ] = None,
    output: Output = RESULTS,
) -> None:
    """Fit post-hoc methods, or count other bins, on stored predictions; nothing is trained again.

    The answers are rows of the table `recalibrations`, beside the network's own probabilities (method `none`).
    """
    from sweeper.analysis.recalibration.progress import RecalibrationProgress
    from sweeper.analysis.recalibration.recalibrating import recalibrate_sweep
    from sweeper.storage.places import publish

    console = Console(stderr=True, highlight=False)
    showing = partial(RecalibrationProgress, console)
    copy, folder = here(name, output)
    done = recalibrate_sweep(copy, folder, method or [], option or [], bins or [], showing)
    publish(name, output)
    for line in done.lines():
        typer.echo(line, err=True)
    sweep, where = Path(copy).name, "" if output == RESULTS else f" --output {output}"
    typer.echo(f'next\n  sweeper results {sweep}{where} --sql "{AFTERWARDS_SQL}"', err=True)
    typer.echo(f"  sweeper report {sweep}{where}\n  sweeper sync {sweep}{where}", err=True)

"""The commands that ask more of sweeps than their results: `compare`, `claims`, `recalibrate`, `focal-map`."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sweeper.cli.common import RESULTS, Name, Output, show
from sweeper.cli.completion import complete_sweep
from sweeper.remote.reach import all_here, here

commands = typer.Typer()

PLAIN_LINE_SECONDS = 10.0
"""Seconds between two lines of progress where there is no terminal."""

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


@commands.command("focal-map")
def focal_map(
    figure: Annotated[str, typer.Argument(help="temperatures, bounds or confidence.")],
    gamma: Annotated[
        list[float] | None, typer.Option(help="Of the focal map; repeatable; the papers' if unset.")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes; the papers' if unset.")] = None,
    kind: Annotated[str, typer.Option("--format", help="table, json, csv or parquet.")] = "table",
    picture: Annotated[Path | None, typer.Option(help="Also draw it into this HTML file.")] = None,
) -> None:
    """Compute how near the focal map is to temperature scaling, and what it does to confidences.

    temperatures is properness Figs. 2 and 6, bounds its Fig. 3, confidence is posterior Fig. 2. Nothing is trained.
    """
    import pyarrow as pa

    from sweeper.analysis.papers.focal_map_figures import map_figure, write_picture
    from sweeper.text.tables import format_table

    found = map_figure(figure, gamma or (), classes)
    text = format_table(pa.Table.from_pylist(found.rows), kind)
    if picture is not None:
        write_picture(found, picture)
    if isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    else:
        typer.echo(text)
    for remark in found.remarks:
        typer.echo(remark, err=True)


class RecalibrationProgress:
    """How far a recalibration has come: a bar on a terminal, a plain line now and then elsewhere.

    A context manager that is called with samples done, samples in all and evaluations done.
    """

    def __init__(self, console: Console, sweep: str) -> None:
        """Show the progress of recalibrating `sweep` on `console`."""
        self._console, self._sweep = console, sweep
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(f"recalibrating {sweep}", total=None)
        self._said = time.monotonic()

    def __enter__(self) -> RecalibrationProgress:
        """Draw the bar."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._bar.stop()

    def __call__(self, done: int, total: int, evaluations: int) -> None:
        """Show that `done` of `total` samples, `evaluations` evaluations, are behind us."""
        self._bar.update(self._task, completed=done, total=total)
        if not self._console.is_terminal and time.monotonic() - self._said >= PLAIN_LINE_SECONDS:
            self._said = time.monotonic()
            self._console.print(f"recalibrating {self._sweep}: {done / total:.0%}, {evaluations:,} evaluations")

"""The commands that analyse sweeps: comparisons, claims, replays, stored predictions, and what papers show."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sweeper.cli.common import RESULTS, Name, Output, Rehearse, Running, Trust, answer, runs_trials, show
from sweeper.cli.completion import complete_format, complete_method, complete_sweep
from sweeper.text.display import SafeConsole

commands = typer.Typer()

PLAIN_LINE_SECONDS = 10.0
"""Seconds between two lines of progress without a terminal."""

AFTERWARDS_SQL = (
    "select trial, method, options, bins, avg(ece), avg(nll), avg(temperature) from recalibrations "
    "where split = 'test' group by all order by all"
)


@commands.command()
def compare(
    first: Name,
    second: Annotated[
        str, typer.Argument(help="Name or path of the sweep to compare with.", autocompletion=complete_sweep)
    ],
    output: Output = RESULTS,
) -> None:
    """Compare two sweeps: settings, versions and hardware, and results over paired configurations."""
    from sweeper.api import analyses

    show(analyses.compare(first, second, output=output))


@commands.command()
def claims(
    name: Annotated[
        str | None, typer.Argument(help="Name or path of a sweep.", show_default="list every claim and its rule")
    ] = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            "--claim", help="Claim to judge; repeatable.", show_default="the claims that the search space names"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    output: Output = RESULTS,
) -> None:
    """Judge claims of papers on a sweep by rules fixed in advance: holds, does not hold or undecided."""
    from sweeper.api import analyses

    found = analyses.claims(name, claim=claim or (), output=output)
    answer(found, as_json=as_json and name is not None, wrap=name is None)


@commands.command("what-if")
def what_if(
    name: Name,
    scheduler: Annotated[
        list[str] | None,
        typer.Option(help="Scheduler as YAML, '{name: asha, reduction_factor: 2}'; repeatable.", show_default="asha"),
    ] = None,
    within: Annotated[
        list[str] | None,
        typer.Option(help="Strata, 'architecture,loss', or none for one pool; repeatable.", show_default="none"),
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(help="Metric to compare by, or metric:max; repeatable.", show_default="the sweep's"),
    ] = None,
    orders: Annotated[int, typer.Option(min=2, help="Random orders to replay.")] = 200,
    trials: Annotated[int | None, typer.Option(min=1, help="Trials drawn for each order.", show_default="all")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials that run concurrently.")] = 2,
    by: Annotated[
        str | None,
        typer.Option(help="Strata to count survivors in.", show_default="architecture,loss where they vary"),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(help="Metric that determines the winner.", show_default="test NLL after temperature scaling"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the orders.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    output: Output = RESULTS,
) -> None:
    """Replay a fully trained sweep through other schedulers: what they would keep, and what that costs."""
    from sweeper.api import analyses

    found = analyses.what_if(
        name, scheduler=scheduler or (), within=within or (), objective=objective or (), orders=orders, trials=trials,
        workers=workers, by=by, judge=judge, seed=seed, output=output,
    )  # fmt: skip
    answer(found, as_json=as_json)


@commands.command()
def recalibrate(
    name: Name,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            help="Post-hoc method to fit (see `sweeper spaces --posthoc`); repeatable.",
            show_default="none",
            autocompletion=complete_method,
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", help="Option of a method: key=value, or method.key=value if several have it; repeatable."
        ),
    ] = None,
    bins: Annotated[
        list[int] | None,
        typer.Option(help="Number of bins for calibration errors; repeatable.", show_default="the sweep's"),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Additional metric (see `sweeper spaces --metrics`); repeatable.", show_default="none"),
    ] = None,
    trust: Trust = False,
    output: Output = RESULTS,
) -> None:
    """Fit post-hoc methods, or recompute ECE with other bin counts, on stored predictions. Nothing is retrained.

    Results are rows of the table `recalibrations`, next to the uncalibrated probabilities (method `none`). What
    `--metric` asks for is in its column `metrics` as JSON: `metrics->>'smooth_ece'`.
    """
    from sweeper.api import analyses
    from sweeper.storage.places import split_name

    done = analyses.recalibrate(
        name, method=method or (), options=option or (), bins=bins or (), metric=metric or (), trust=trust,
        output=output, progress=partial(RecalibrationProgress, SafeConsole(stderr=True)),
    )  # fmt: skip
    for line in done.lines():
        typer.echo(line, err=True)
    sweep, where = Path(split_name(name, output)[0]).name, "" if output == RESULTS else f" --output {output}"
    typer.echo(f'next\n  sweeper results {sweep}{where} --sql "{AFTERWARDS_SQL}"', err=True)
    typer.echo(f"  sweeper report {sweep}{where}\n  sweeper sync {sweep}{where}", err=True)


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
    from sweeper.api import analyses

    show(analyses.ensemble(name, size=size, candidates=candidates, picture=picture, output=output))


@commands.command()
def conformal(
    name: Name,
    alpha: Annotated[float, typer.Option(help="Miscoverage rate, between 0 and 1.")] = 0.1,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="Post-hoc method to apply first (see `sweeper spaces --posthoc`).",
            show_default="none",
        ),
    ] = None,
    crosswise: Annotated[
        bool,
        typer.Option(
            "--crosswise",
            help="Fit the method to all folds but one in turn (CV+), not on one half of validation data: smaller sets, "
            "a weaker guarantee.",
        ),
    ] = False,
    output: Output = RESULTS,
) -> None:
    """Show coverage and size of the best configuration's conformal prediction sets: THR, APS and RAPS."""
    from sweeper.api import analyses

    show(analyses.conformal(name, alpha=alpha, method=method, crosswise=crosswise, output=output))


@commands.command("focal-map")
def focal_map(
    figure: Annotated[
        str, typer.Argument(help="Figure to compute: temperatures, bounds, confidence, or one by paper: mukhoti-4a.")
    ],
    gamma: Annotated[
        list[float] | None, typer.Option(help="γ of the focal map; repeatable.", show_default="those of the papers")
    ] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes.", show_default="those of the papers")] = None,
    kind: Annotated[
        str,
        typer.Option("--format", help="Output format: table, json, csv or parquet.", autocompletion=complete_format),
    ] = "table",
    picture: Annotated[
        Path | None,
        typer.Option(help="Also write the figure to this file: .html, .png, .svg or .pdf.", show_default="none"),
    ] = None,
) -> None:
    """Compare the focal calibration map with temperature scaling, and show its effect on confidences.

    temperatures: properness Figs. 2 and 6; bounds: properness Fig. 3; confidence: posterior Fig. 2; curvature-1,
    properness-1-left, properness-1-right, properness-2-right, properness-4, -5, -7, mukhoti-4a, mukhoti-6, posterior-1,
    selective-1, selective-a-1, -2, -3, -5: losses, their weights and gradients, and maps. No training.
    """
    import pyarrow as pa

    from sweeper.analysis.papers.focal_map_figures import map_figure
    from sweeper.reporting.html import write_figure
    from sweeper.text.display import format_table

    found = map_figure(figure, gamma or (), classes)
    text = format_table(pa.Table.from_pylist(found.rows), kind)
    if picture is not None:
        write_figure(found.figure(figure), picture)
    if isinstance(text, bytes):
        sys.stdout.buffer.write(text)
    else:
        typer.echo(text)
    for remark in found.remarks:
        typer.echo(remark, err=True)


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


class RecalibrationProgress:
    """Progress of a recalibration: a bar on a terminal, a plain line every ten seconds elsewhere.

    A context manager; call it with samples done, total samples and evaluations done.
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
        """Remove the bar."""
        self._bar.stop()

    def __call__(self, done: int, total: int, evaluations: int) -> None:
        """Show that `done` of `total` samples, in `evaluations` evaluations, are done."""
        self._bar.update(self._task, completed=done, total=total)
        if not self._console.is_terminal and time.monotonic() - self._said >= PLAIN_LINE_SECONDS:
            self._said = time.monotonic()
            self._console.print(f"recalibrating {self._sweep}: {done / total:.0%}, {evaluations:,} evaluations")

"""What commands share: options, exit statuses, printing of tables, and the summary after a run."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer
from rich.console import RenderableType

from sweeper.cli.completion import complete_setting, complete_space, complete_sweep
from sweeper.core.errors import SweeperError
from sweeper.core.processes import Executor
from sweeper.text.display import SafeConsole, Shown

if TYPE_CHECKING:
    from rich.table import Table

    from sweeper.api.finished import FinishedRun

DONE, INCOMPLETE, BAD_INPUT = 0, 1, 2

Output = Annotated[
    str, typer.Option("--output", "-o", envvar="SWEEPER_OUTPUT", help="Directory of results, s3://…, gs://… or az://….")
]
Space = Annotated[
    str, typer.Argument(help="Search space file, or the name of a shipped one.", autocompletion=complete_space)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a key of the search space, e.g. seed=1; repeatable.",
        metavar="KEY=VALUE",
        autocompletion=complete_setting,
    ),
]
Name = Annotated[str, typer.Argument(help="Name of the sweep, or path of its results.", autocompletion=complete_sweep)]
Tracking = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        envvar="MLFLOW_TRACKING_URI",
        help="MLflow tracking store, or tensorboard: for event files in the sweep's folder.",
        show_default="a local SQLite file",
    ),
]
NoMlflow = Annotated[bool, typer.Option("--no-mlflow", help="Write Parquet tables only, no MLflow runs.")]
Rehearse = Annotated[
    bool,
    typer.Option("--rehearse", help="Scale down to digits, small networks and a few epochs; results are marked."),
]
Address = Annotated[
    str | None, typer.Option(envvar="RAY_ADDRESS", help="Address of a Ray cluster.", show_default="start one here")
]
Cpus = Annotated[int | None, typer.Option(min=1, help="CPU cores to use on this machine.", show_default="all")]
AllowNotify = Annotated[
    bool,
    typer.Option("--allow-notify", help="Send the notifications that the file asks for; remembered for its directory."),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run the code that came with the sweep; remembered for this code.")
]
RunsOn = Annotated[
    Executor,
    typer.Option(
        "--executor",
        envvar="SWEEPER_EXECUTOR",
        help="local: forked processes on this machine; ray; auto: local if there is no cluster and no GPU.",
    ),
]
WaitForNodes = Annotated[
    float, typer.Option(min=0, help="Minutes to wait for the autoscaler to add the first node that fits a trial.")
]
Notify = Annotated[
    list[str] | None,
    typer.Option(
        help="Notify on completion, failure or exhausted budget: '${SWEEP_WEBHOOK}' or a command; repeatable."
    ),
]
Timed = Annotated[bool, typer.Option("--timings", help="Print how long each phase took, in seconds.")]
RESULTS = "results"


class Running(TypedDict):
    """The values of these options, as keyword arguments of `sweeper.api`'s `run`, `resume` and `run_paper`."""

    output: str
    tracking_uri: str | None
    mlflow: bool
    address: str | None
    cpus: int | None
    executor: Executor


def _running(
    output: Output = RESULTS,
    tracking_uri: Tracking = None,
    no_mlflow: NoMlflow = False,
    address: Address = None,
    cpus: Cpus = None,
    executor: RunsOn = "auto",
) -> Running:
    return {
        "output": output,
        "tracking_uri": tracking_uri,
        "mlflow": not no_mlflow,
        "address": address,
        "cpus": cpus,
        "executor": executor,
    }


def runs_trials(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options in the place of its parameter `running`, which holds their values."""
    options = inspect.signature(_running, eval_str=True).parameters
    parameters: list[inspect.Parameter] = []
    for name, own in inspect.signature(command, eval_str=True).parameters.items():
        parameters += [*options.values()] if name == "running" else [own]

    @functools.wraps(command)
    def with_options(**given: object) -> None:
        asked = {name: given.pop(name) for name in options}
        command(**given, running=_running(**asked))  # type: ignore[arg-type]  # typer has checked them

    taken = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    with_options.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]  # what typer reads
    return with_options


PLAIN_WIDTH = 100
"""Columns of listings outside a terminal."""


def show(content: RenderableType, width: int = 140, *, wrap: bool = True) -> None:
    """Print a table or text in the width of the terminal, or in `width` columns elsewhere; or lines as they are."""
    console = SafeConsole()
    if not console.is_terminal:
        console.width = width
    console.print(content, soft_wrap=not wrap)


def answer(found: Shown[Any], *, as_json: bool, wrap: bool = True) -> None:
    """Print what a function of `sweeper.api` returns, or its values as JSON."""
    if as_json:
        typer.echo(json.dumps(found.json, indent=2))
    else:
        show(found, wrap=wrap)


def discard_output() -> None:
    """Send what is still to be printed to the null device: nobody reads it, and flushing it would fail again."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: a test's or a notebook's stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def finish(done: FinishedRun, timings: bool = False) -> None:
    """Print a run's summary, the paths of its results, and the next commands, ready to paste; timings on request.

    The sweep's success does not depend on it: where it cannot be read or printed, a sentence on stderr says so.
    """
    try:
        _print_finished(done, timings)
        sys.stdout.flush()
    except (SweeperError, OSError, MemoryError, ImportError) as error:  # ImportError: too little memory for a library
        discard_output()
        with contextlib.suppress(OSError):
            why = getattr(error, "strerror", None) or str(error).partition("\n")[0] or "too little memory"
            typer.echo(f"the summary could not be printed: {why}; see `sweeper results {done.name}`", err=True)
    raise typer.Exit(DONE if done.complete else INCOMPLETE)


def _print_finished(done: FinishedRun, timings: bool) -> None:
    from sweeper.reporting.summary import summary
    from sweeper.storage.places import DRIVING, place_of
    from sweeper.text.labels import plural

    show(summary(done.results))
    say: Callable[[str], None] = typer.echo
    store = place_of(done.output, DRIVING).store
    if store is None:
        say(f"\nresults  {_short(done.folder)}")
        if done.report.path.exists():  # a second Ctrl-C leaves none
            say(f"report   {_short(done.report.path)}")
    else:
        say(f"\nresults  {store.child(done.name).uri}")
    for note in done.notes:
        say(f"note     {note}")
    if done.counts["failed"] > done.retriable:
        diverged = plural(done.counts["failed"] - done.retriable, "failed trial")
        say(f"note     {diverged} diverged; retries would diverge again, because they use the same random numbers")
    where = "" if done.output == RESULTS else f" --output {done.output}"
    next_commands = [
        f'sweeper results {done.name}{where} --sql "select status, config_loss_name, avg(ece) from final '
        "where split = 'test' group by all order by 1, 3\"",
        f"sweeper ui{where}" if store is None else f"sweeper report {done.name}{where}",
    ]
    if done.outcome != "finished":
        say(f"\n{done.outcome}: {done.unfinished} of {sum(done.counts.values())} trials are unfinished")
        next_commands.insert(0, f"sweeper resume {done.name}{where}")
    elif done.retriable:
        next_commands.insert(0, f"sweeper resume {done.name}{where} --failed")
    say("\nnext")
    for command in next_commands:
        say(f"  {command}")
    if timings:
        show(_phases(done))


def _phases(done: FinishedRun) -> Table:
    """Return how long each phase of a run took, counted from the start of this process to now."""
    from sweeper.core.ids import SweepPaths
    from sweeper.journal.journal import read_journal
    from sweeper.monitoring.timings import process_began

    done.timings.began = process_began()
    done.timings.read(read_journal(SweepPaths(done.folder).journal))
    done.timings.note("summary printed")
    return done.timings.table()


def _short(path: Path) -> str:
    """Return a path relative to the current folder where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)

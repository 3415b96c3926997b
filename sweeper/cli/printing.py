"""What commands print, and what they are given to do so: progress, questions, and the summary after a run."""

from __future__ import annotations

import contextlib
import json as json_module
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sweeper.api.arguments import CommandOption, output_folder
from sweeper.api.commands import followed
from sweeper.api.finished import FinishedRun, Submitted
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.text.display import SafeConsole, Shown, as_data, printable
from sweeper.text.labels import plural

if TYPE_CHECKING:
    from sweeper.slurm.submission import SlurmSubmission

DONE, INCOMPLETE, BAD_INPUT = 0, 1, 2
RESULTS = "results"

#: Seconds between two lines of progress without a terminal.
PLAIN_LINE_SECONDS = 10.0

AFTERWARDS_SQL = (
    "select trial, method, options, bins, avg(ece), avg(nll), avg(temperature) from recalibrations "
    "where split = 'test' group by all order by all"
)

#: What was typed, by the function's parameters.
Given = Mapping[str, Any]


def say(line: str) -> None:
    """Print a line on the standard error."""
    typer.echo(line, err=True)


def write(text: str) -> None:
    """Print text as it comes."""
    sys.stdout.write(text)
    sys.stdout.flush()


def show(content: RenderableType, width: int = 140, *, wrap: bool = True) -> None:
    """Print a table or text in the width of the terminal, or in `width` columns elsewhere; or lines as they are."""
    console = SafeConsole()
    if not console.is_terminal:
        console.width = width
    console.print(content, soft_wrap=not wrap)


def display(found: object, given: Given) -> None:
    """Print an answer, then its notes, and end with its exit status."""
    if not isinstance(found, Shown):
        typer.echo(printable(str(found)))
        return
    if isinstance(found.look, bytes):
        sys.stdout.buffer.write(found.look)
    elif isinstance(found.look, str):
        typer.echo(printable(found.look) if sys.stdout.isatty() else found.look)
    elif found.look is not None:
        show(found.look, found.width, wrap=found.wrap)
    for note in found.notes:
        say(note)
    if found.fault is not None:
        raise found.fault
    raise typer.Exit(found.exit_code)


def display_json(answer: object, *, form: Annotated[str, CommandOption(("--format", "-f"))] = "table") -> None:
    """Print an answer's values as JSON, then its notes, and end with its exit status.

    Args:
        form: Output format: table or json.
    """
    if not isinstance(answer, Shown) or answer.value is not None:
        typer.echo(json_module.dumps(as_data(answer), indent=2, ensure_ascii=False))
    if isinstance(answer, Shown):
        answer.look = None
        display(answer, {})
    if isinstance(answer, FinishedRun):
        raise typer.Exit(DONE if answer.complete else INCOMPLETE)


def told(found: str, given: Given) -> None:
    """Print a sentence about what was done."""
    say(found)


def finished(found: FinishedRun | Submitted | SlurmSubmission, given: Given, *, timings: bool = False) -> None:
    """Print a run's summary, the paths of its results, and the next commands, ready to paste.

    The sweep's success does not depend on it: where it cannot be read or printed, a sentence on stderr says so.

    Args:
        timings: Print how long each phase took, in seconds.
    """
    if not isinstance(found, FinishedRun):
        submitted(found, given)
        return
    try:
        _print_finished(found, timings)
        sys.stdout.flush()
    except (SweeperError, OSError, MemoryError, ImportError) as error:  # ImportError: too little memory for a library
        discard_output()
        with contextlib.suppress(OSError):
            why = getattr(error, "strerror", None) or str(error).partition("\n")[0] or "too little memory"
            say(f"the summary could not be printed: {why}; see `sweeper results {found.name}`")
    raise typer.Exit(DONE if found.complete else INCOMPLETE)


def discard_output() -> None:
    """Send what is still to be printed to the null device: nobody reads it, and flushing it would fail again."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: a test's or a notebook's stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_finished(done: FinishedRun, timings: bool) -> None:
    from sweeper.reporting.summary import summary
    from sweeper.storage.places import DRIVING, place_of

    show(summary(done.results))
    tell: Callable[[str], None] = typer.echo
    store = place_of(done.output, DRIVING).store
    if store is None:
        tell(f"\nresults  {_short(done.folder)}")
        if done.report.path.exists():  # a second Ctrl-C leaves none
            tell(f"report   {_short(done.report.path)}")
    else:
        tell(f"\nresults  {store.child(done.name).uri}")
    for note in done.notes:
        tell(f"note     {note}")
    if done.counts["failed"] > done.retriable:
        diverged = plural(done.counts["failed"] - done.retriable, "failed trial")
        tell(f"note     {diverged} diverged; retries would diverge again, because they use the same random numbers")
    where = "" if done.output == RESULTS else f" --output {done.output}"
    next_commands = [
        f'sweeper results {done.name}{where} --sql "select status, config_loss_name, avg(ece) from final '
        "where split = 'test' group by all order by 1, 3\"",
        f"sweeper ui{where}" if store is None else f"sweeper report {done.name}{where}",
    ]
    if done.outcome != "finished":
        tell(f"\n{done.outcome}: {done.unfinished} of {sum(done.counts.values())} trials are unfinished")
        next_commands.insert(0, f"sweeper resume {done.name}{where}")
    elif done.retriable:
        next_commands.insert(0, f"sweeper resume {done.name}{where} --failed")
    tell("\nnext")
    for command in next_commands:
        tell(f"  {command}")
    if timings:
        _print_phases(done)


def _print_phases(done: FinishedRun) -> None:
    """Print how long each phase of a run took, counted from the start of this process to now."""
    from sweeper.monitoring.live import process_began

    done.timings.began = process_began()
    done.timings.read(read_journal(SweepPaths(done.folder).journal))
    done.timings.note("summary printed")
    show(done.timings.table())


def _short(path: Path) -> str:
    """Return a path relative to the current folder where that is shorter."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def submitted(found: Submitted | SlurmSubmission, given: Given, *, wait: bool = False) -> None:
    """Print what was submitted and the next commands.

    Args:
        wait: Follow the log until the sweep ends, and exit with its status.
    """
    if not isinstance(found, Submitted):
        given_to_slurm(found)
        return
    say(f"submitted {found.name} as job {found.job}")
    say("next")
    for words in ("status", f"cluster logs {found.name} --follow", f"results {found.name}", f"stop {found.name}"):
        say(f"  sweeper {words} --dashboard {found.address}")
    if wait:
        display(followed(found.cluster, found.job, write), given)


def given_to_slurm(found: SlurmSubmission) -> None:
    """Print a sweep's jobs and the next commands; its scripts where nothing was submitted."""
    if not found.jobs:
        typer.echo("\n".join(f"# {found.folder / file}\n{text}" for file, text in found.scripts.items()))
        say(f"nothing was submitted: these are the scripts that {_short(found.asked or found.folder)} makes")
        return
    where = f"--output {shlex.quote(str(found.folder.parent.parent))}"
    by = f", as {_short(found.asked)} says" if found.asked is not None else ""
    say(f"submitted {found.name} as {plural(len(found.jobs), 'job')} {', '.join(found.jobs)}{by}")
    say("next")
    for words in ("status", "cluster logs", "results", "stop"):
        say(f"  sweeper {words} {found.name} {where}")


def exported(found: Any, given: Given) -> None:
    """Print where an exported model is."""
    typer.echo(found.sentence())


def recalibrated(found: Shown[Any], given: Given) -> None:
    """Print what was computed, and the next commands."""
    from sweeper.storage.places import split_name

    for line in found.lines():
        say(line)
    output = output_folder(given.get("output"))
    sweep, where = Path(split_name(given["name"], output)[0]).name, "" if output == RESULTS else f" --output {output}"
    say(f'next\n  sweeper results {sweep}{where} --sql "{AFTERWARDS_SQL}"')
    say(f"  sweeper report {sweep}{where}\n  sweeper manage sync {sweep}{where}")


@contextlib.contextmanager
def recalibration_progress(console: Console, sweep: str) -> Iterator[Callable[[int, int, int], None]]:
    """Show the progress of recalibrating `sweep`: a bar on a terminal, a plain line every ten seconds elsewhere.

    Yield what is called with samples done, total samples and evaluations done.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    said = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"recalibrating {sweep}", total=None)

        def advance(done: int, total: int, evaluations: int) -> None:
            nonlocal said
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and time.monotonic() - said >= PLAIN_LINE_SECONDS:
                said = time.monotonic()
                console.print(f"recalibrating {sweep}: {done / total:.0%}, {evaluations:,} evaluations")

        yield advance


#: What prints the answers of a command that is not simply displayed.
PRINTED: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("run", "resume"), finished),
    "submit": submitted,
    "stop": told,
    "export": exported,
    "recalibrate": recalibrated,
}

#: Arguments of functions that are no options: the command line gives them.
GIVEN: dict[str, Callable[..., Any]] = {
    "say": say,
    "write": write,
    "ask": partial(typer.confirm, abort=True, err=True),
    "progress": partial(recalibration_progress, SafeConsole(stderr=True)),
}

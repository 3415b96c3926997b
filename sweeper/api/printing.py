"""Printing for commands: answers, progress, questions, and the summary after a run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.prompt import Confirm

from sweeper.api.arguments import RESULTS
from sweeper.api.finished import FinishedRun
from sweeper.core.display import CommandResult, SafeConsole, as_data, printable
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.core.labels import near_path, plural
from sweeper.journal.journal import read_journal
from sweeper.reporting.live import process_began
from sweeper.storage.places import DRIVING, place_of

#: Exit statuses: done; failed trials, or stopped; bad input.
DONE, INCOMPLETE, BAD_INPUT = 0, 1, 2

#: Seconds between two lines of progress without a terminal: a log of hours stays readable.
PLAIN_LINE_SECONDS = 10.0


def say(line: str) -> None:
    """Print a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Print text unchanged, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()  # a log that is followed through a pipe must not wait for a full buffer


def ask(question: str) -> None:
    """Ask for confirmation; exit unless the answer is yes."""
    with contextlib.suppress(EOFError):  # standard input is closed: nobody can answer
        if Confirm.ask(question, console=SafeConsole(stderr=True), default=False):
            return
    say("nothing was done")
    raise SystemExit(INCOMPLETE)


def show(content: RenderableType, width: int = 140, *, wrap: bool = True) -> None:
    """Print a table or text at the terminal's width, or at `width` outside a terminal; `wrap` wraps long lines.

    Outside a terminal nothing is cut.
    """
    console = SafeConsole()
    if not console.is_terminal:  # rich would assume 80 columns for a file or a pipe
        console.width = width
    console.print(content, soft_wrap=not wrap, crop=console.is_terminal)


def display(answer: object, *, as_json: bool = False) -> int:
    """Print a command's result, or its values as JSON, then its notes; return the exit status."""
    if answer is None:  # help was printed
        return DONE
    if as_json and (not isinstance(answer, CommandResult) or answer.value is not None):
        # γ and ± stay readable; `print_what_can_be_printed` replaces them where the terminal lacks them.
        print(json.dumps(as_data(answer), indent=2, ensure_ascii=False))
    if isinstance(answer, FinishedRun):
        if not as_json:
            print_run(answer)
        return DONE if answer.complete else INCOMPLETE
    shown: CommandResult[Any] = answer if isinstance(answer, CommandResult) else _shown(answer)
    if not as_json:
        _print_rendered(shown)
    for note in shown.notes:
        say(note)
    if shown.fault is not None:  # after the output, which is valid: `main` prints the error
        raise shown.fault
    return shown.exit_code


def _shown(answer: object) -> CommandResult[Any]:
    """Return an answer's own display, or its text."""
    return answer.shown() if hasattr(answer, "shown") else CommandResult(answer, str(answer))


def _print_rendered(answer: CommandResult[object]) -> None:
    if isinstance(answer.rendered, bytes):  # Parquet
        sys.stdout.buffer.write(answer.rendered)
    elif isinstance(answer.rendered, str):
        # Names from a stranger's sweep may contain terminal control sequences; a file keeps them.
        print(printable(answer.rendered) if sys.stdout.isatty() else answer.rendered)
    elif answer.rendered is not None:
        show(answer.rendered, answer.width, wrap=answer.wrap)


def print_run(done: FinishedRun) -> None:
    """Print a run's summary, the paths of its results, and the next commands, ready to paste.

    The sweep succeeds even if its summary cannot be read or printed; a line on stderr then says so.
    """
    try:
        _print_summary(done)
        _print_places(done)
        _print_next_commands(done)
        if done.show_timings:
            _print_phases(done)
        sys.stdout.flush()
    except (SweeperError, OSError, MemoryError, ImportError) as error:  # ImportError: too little memory for a library
        discard_output()
        with contextlib.suppress(OSError):
            why = getattr(error, "strerror", None) or str(error).partition("\n")[0] or "too little memory"
            say(f"the summary could not be printed: {why}; see `sweeper results {done.name}`")


def discard_output() -> None:
    """Redirect standard output to the null device: nobody reads it, and flushing it at exit would fail again."""
    with contextlib.suppress(OSError, ValueError):  # no descriptor: a test's or a notebook's stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_summary(done: FinishedRun) -> None:
    from sweeper.reporting.summary import summary

    show(summary(done.results))


def _print_places(done: FinishedRun) -> None:
    """Print where the results are, and notes on the run."""
    store = place_of(done.output, DRIVING).store
    if store is None:
        print(f"\nresults  {near_path(done.folder)}")
        if done.report.path.exists():  # missing after a second Ctrl-C
            print(f"report   {near_path(done.report.path)}")
    else:
        print(f"\nresults  {store.child(done.name).uri}")
    for note in done.notes:
        print(f"note     {note}")
    if done.counts["failed"] > done.retriable:
        diverged = plural(done.counts["failed"] - done.retriable, "failed trial")
        print(f"note     {diverged} diverged; retries would diverge again, because they use the same random numbers")


def _print_next_commands(done: FinishedRun) -> None:
    """Print commands to paste: to query and view the results, and to resume or retry what is unfinished."""
    where = "" if done.output == RESULTS else f" --output {done.output}"
    store = place_of(done.output, DRIVING).store
    split = "test" if "test" in done.results.specification["evaluation"]["splits"] else "val"
    next_commands = [
        f'sweeper results {done.name}{where} --sql "select status, config_loss_name, avg(ece) from final '
        f"where split = '{split}' group by all order by 1, 3\"",
        f"sweeper ui{where}" if store is None else f"sweeper report {done.name}{where}",
    ]
    if done.outcome != "finished":
        print(f"\n{done.outcome}: {done.unfinished} of {sum(done.counts.values())} trials are unfinished")
        next_commands.insert(0, f"sweeper resume {done.name}{where}")
    elif done.retriable:
        next_commands.insert(0, f"sweeper resume {done.name}{where} --failed")
    print("\nnext")
    for command in next_commands:
        print(f"  {command}")


def _print_phases(done: FinishedRun) -> None:
    """Print the duration of each phase of a run, from the start of this process to now."""
    done.timings.began = process_began()
    done.timings.read(read_journal(SweepPaths(done.folder).journal))
    done.timings.note("summary printed")
    show(done.timings.table())


@contextlib.contextmanager
def recalibration_progress(console: Console, sweep: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of recalibrating `sweep`: a bar on a terminal, a plain line every ten seconds elsewhere.

    Yields a callback that takes the number of evaluations done, and of all.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    said = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"recalibrating {sweep}", total=None)

        def advance(done: int, total: int) -> None:
            nonlocal said
            bar.update(task, completed=done, total=total)
            if not console.is_terminal and time.monotonic() - said >= PLAIN_LINE_SECONDS:
                said = time.monotonic()
                console.print(f"recalibrating {sweep}: {done:,} of {total:,} evaluations")

        yield advance


#: Arguments that the command line supplies to functions: parameter name → callback.
HANDED: dict[str, Callable[..., object]] = {
    "say": say,
    "write": write,
    "ask": ask,
    "progress": partial(recalibration_progress, SafeConsole(stderr=True)),
}

"""The look of a sweep's progress: a panel on terminals, one line elsewhere; for the driver and for watchers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sweeper.core.ids import trial_name
from sweeper.journal.best import best_words
from sweeper.journal.records import Failed
from sweeper.journal.state import FAILED, TrialState
from sweeper.monitoring.snapshot import Snapshot
from sweeper.text.durations import duration

BAR = 24
"""Columns of a progress bar: with the times beside it, it fits a terminal of 80."""


def counts_text(counts: Mapping[str, int], separator: str = ", ") -> str:
    """Return how many trials are in each status, e.g. `3 waiting, 2 running, 1 early stopped`."""
    return separator.join(f"{n} {status.replace('_', ' ')}" for status, n in counts.items() if n)


def best_text(trial: TrialState, metric: str) -> str:
    """Return the best trial's value, e.g. `best val_nll 0.1234`, or `best so far …` while none has completed."""
    return f"{best_words(trial)} {metric} {trial.objective:.4f}"


def failure_line(body: Failed) -> str:
    """Return a failure as one plain line, e.g. `c00004 crash: its process died`."""
    return f"{trial_name(body.configuration)} {body.failure}: {body.reason}"


def speed_text(now: Snapshot) -> str:
    """Return the throughput, e.g. `12.3 epochs/s`; empty at the start."""
    return f"{now.epochs / now.seconds:.1f} epochs/s" if now.seconds > 0 else ""


def left_text(now: Snapshot) -> str:
    """Return the time left, e.g. `about 2 min left`; empty before an estimate exists and when no trial is left."""
    return f"about {duration(now.seconds_left)} left" if now.seconds_left is not None and now.share < 1 else ""


def progress_line(now: Snapshot, metric: str) -> str:
    """Return a snapshot as one plain line."""
    best = f"{best_text(now.best, metric)} ({trial_name(now.best.configuration)})" if now.best else ""
    parts = [counts_text(now.counts), speed_text(now), left_text(now), best]
    return " · ".join(part for part in parts if part)


def progress_panel(
    now: Snapshot, metric: str, describe: Callable[[int], str], notes: Sequence[str] = ()
) -> RenderableType:
    """Return a snapshot as a panel: counts, time, trials promoted and stopped at each rung, the best trials.

    Args:
        now: the snapshot.
        metric: the objective's name.
        describe: returns a configuration in a few words.
        notes: sentences between the rungs and the best trial.
    """
    counts = Text(counts_text(now.counts, "  "))
    if now.counts[FAILED]:
        counts.stylize("red")
    times = Table.grid(padding=(0, 2))
    words = (
        duration(now.seconds),
        left_text(now) or ("estimating time left" if now.share < 1 else ""),
        speed_text(now),
    )
    bar = ProgressBar(total=1.0, completed=now.share, width=BAR)
    times.add_row(bar, Text(" · ".join(word for word in words if word)))
    lines: list[RenderableType] = [counts, times, rungs_table(now)]
    lines += [Text(note, style="dim") for note in notes]
    for place, trial in enumerate(now.leaders):
        value = f"{metric} {trial.objective:.4f}" if place else best_text(trial, metric)
        named = f"{trial_name(trial.configuration)} {describe(trial.configuration)}"
        text = f"{value} after {trial.epochs} epochs: {named}"
        lines.append(Text(text, style="dim" if place else "green", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def rungs_table(now: Snapshot) -> Table:
    """Return one column per rung: trials running towards it, promoted beyond it, and stopped at it."""
    table = Table(box=None, padding=(0, 2), show_edge=False)
    for heading in ("", *(f"rung {rung}" for rung in now.rungs)):
        table.add_column(heading, justify="right" if heading else "left", header_style="bold")
    table.add_row("running", *(str(now.towards[rung]) for rung in now.rungs))
    table.add_row("promoted", *(str(passed) for passed, _ in now.rungs.values()))
    table.add_row("stopped", *(str(stopped) for _, stopped in now.rungs.values()), style="dim")
    return table

"""The progress of a cluster's sweeps, from its Jobs API: needs only the cluster's address."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

from rich.table import Table

from sweeper.journal.state import COMPLETED, EARLY_STOPPED, FAILED, INTERRUPTED, RUNNING, WAITING
from sweeper.remote.cluster import RemoteSweep
from sweeper.text.labels import duration

_STATUSES = "|".join(
    status.replace("_", " ") for status in (WAITING, RUNNING, COMPLETED, EARLY_STOPPED, FAILED, INTERRUPTED)
)
_PROGRESS = re.compile(rf"^\d[\d,]* (?:(?:{_STATUSES})\b|trials?:).*$", re.MULTILINE)
"""A driver's lines of progress, and the counts of its summary, which come last."""


def sweeps_table(
    sweeps: Iterable[RemoteSweep], logs: Callable[[str], str], now: Callable[[], float] = time.time
) -> Table:
    """Return one row per sweep: its state, who submitted it and when, its progress, where its results are.

    Args:
        sweeps: drivers, the newest of each sweep first; older ones of the same sweep are left out.
        logs: gives what a driver has printed.
        now: Unix time in seconds.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("sweep", "state", "submitter", "began", "progress", "results"):
        table.add_column(heading, no_wrap=heading != "progress")
    seen = set()
    for sweep in sweeps:
        if sweep.name not in seen:
            seen.add(sweep.name)
            began = f"{duration(max(0.0, now() - sweep.started))} ago" if sweep.started is not None else "–"
            table.add_row(
                sweep.name,
                sweep.state,
                sweep.submitter,
                began,
                progress_of(sweep, logs),
                f"{sweep.output}/{sweep.name}",
            )
    return table


def progress_of(sweep: RemoteSweep, logs: Callable[[str], str]) -> str:
    """Return the progress of a sweep, in a line: from its driver's status, or from Ray's where it wrote none."""
    return last_progress(logs(sweep.job)) or first_sentence(sweep.message) or "–"


def last_progress(text: str) -> str:
    """Return the last line of progress in what a driver has printed, or nothing."""
    lines = _PROGRESS.findall(text)
    return str(lines[-1]).strip() if lines else ""


def first_sentence(message: str) -> str:
    """Return the first line of a message, cut to what fits a table."""
    line = message.strip().splitlines()[0] if message.strip() else ""
    return line if len(line) <= 120 else f"{line[:117]}…"

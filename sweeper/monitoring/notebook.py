"""A sweep's progress in a notebook: one display, updated in place, without widgets."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from html import escape
from typing import Any

from rich.console import Console

from sweeper.core.ids import trial_name
from sweeper.journal.records import Failed, Record
from sweeper.journal.state import SweepState
from sweeper.monitoring.live import Progress
from sweeper.monitoring.snapshot import Snapshot, best_text, counts_text, failure_line, left_text, speed_text
from sweeper.scheduling.base import Scheduler
from sweeper.text.labels import duration

UPDATE_SECONDS = 0.5
"""Faster updates cannot be read; a browser redraws a small table in milliseconds."""

FAILURES_SHOWN = 5

_BAR = (
    '<div style="height:6px;width:320px;border-radius:3px;background:rgba(128,128,128,.3);margin:4px 0 8px">'
    '<div style="height:6px;width:{share:.1%};border-radius:3px;background:#2a78d6"></div></div>'
)
_CELL = "text-align:right;padding:1px 10px"


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookProgress(Progress):
    """Shows a sweep in the output of the cell that runs it."""

    def __init__(
        self, console: Console, state: SweepState, schedule: Scheduler, describe: Callable[[int], str]
    ) -> None:
        """Prepare to show `state`; `console` is not written to."""
        super().__init__(console, state, schedule, describe)
        self._handle: Any = None
        self._failures: list[str] = []

    def __enter__(self) -> NotebookProgress:
        """Begin to show."""
        from IPython.display import HTML, display

        self._handle = display(HTML(self._html()), display_id=True)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Leave the last state in the cell."""
        if kind is None:
            self._stage = "done"
        self._update()

    def stage(self, text: str) -> None:
        """Show what the driver is doing; `running` restarts the clock for throughput."""
        self._stage = text
        if text == "running":
            self._started = self._clock()
        self._update()

    def say(self, text: str) -> None:
        """Show a sentence about the cluster until the next one."""
        self._cluster = text
        self._update()

    def append(self, record: Record) -> None:
        """Record a failure."""
        if isinstance(record.body, Failed):
            self._failures.append(failure_line(record.body))

    def flush_if_due(self) -> None:
        """Redraw when it is due."""
        if self._clock() - self._printed >= UPDATE_SECONDS:
            self._update()

    def _update(self) -> None:
        from IPython.display import HTML

        self._printed = self._clock()
        if self._handle is not None:
            self._handle.update(HTML(self._html()))

    def _html(self) -> str:
        now = self._snapshot()
        if self._printed == -math.inf:
            return f"<p>{escape(self._stage)} …</p>"
        times = [duration(now.seconds), left_text(now), speed_text(now)]
        head = f"<b>{escape(self._stage)}</b> · {escape(' · '.join(filter(None, times)))}"
        parts = [head, _BAR.format(share=now.share), escape(counts_text(now.counts)), rungs_html(now)]
        parts += [f"<i>{escape(self._cluster)}</i>"] if self._cluster else []
        if now.best is not None:
            words = f"{trial_name(now.best.configuration)} {self._describe(now.best.configuration)}"
            found = f"{best_text(now.best, self._schedule.metric)} after {now.best.epochs} epochs: {words}"
            parts.append(f"<b>{escape(found)}</b>")
        parts += [f'<span style="color:#c0392b">{escape(text)}</span>' for text in self._failures[-FAILURES_SHOWN:]]
        lines = "".join(f"<div>{part}</div>" for part in parts)
        return f'<div style="font-variant-numeric:tabular-nums">{lines}</div>'


def rungs_html(now: Snapshot) -> str:
    """Return one column per rung: trials running towards it, promoted beyond it, and stopped at it."""
    rows = [
        ("", [f"rung {rung}" for rung in now.rungs]),
        ("running", [str(now.towards[rung]) for rung in now.rungs]),
        ("promoted", [str(passed) for passed, _ in now.rungs.values()]),
        ("stopped", [str(stopped) for _, stopped in now.rungs.values()]),
    ]
    cells = "".join(
        f'<tr><th style="text-align:left;padding:1px 10px 1px 0">{escape(heading)}</th>'
        + "".join(f'<td style="{_CELL}">{escape(text)}</td>' for text in row)
        + "</tr>"
        for heading, row in rows
    )
    return f'<table style="border-collapse:collapse;margin:6px 0">{cells}</table>'

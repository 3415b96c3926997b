"""How far a recalibration has come: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

PLAIN_LINE_SECONDS = 10.0


class RecalibrationProgress:
    """A context manager that is called with samples done, samples in all and evaluations done."""

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

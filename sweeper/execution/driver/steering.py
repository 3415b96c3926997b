"""Control a running sweep: controllers that the driver calls on every turn, its budget, and Ctrl-C.

A controller watches the budget, the cluster or the lease, and writes requests to `Steering`; only the driver acts on
them. Sinks (tables, trackers, metrics) only receive records.

An exhausted budget ends a sweep gently. No further trial starts. Running trials continue to their next rung, where they
are evaluated as usual. Then the sweep ends as stopped, with the reason. So spending can exceed the budget by the cost
of reaching the next rung. A resume with a larger budget continues from there.

Ctrl-C is not a controller, because the user must get an answer at once. The first press ends the sweep after the
current epoch; the second also skips tables and report.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sweeper.journal.best import Spending
from sweeper.journal.records import Attempt, Record
from sweeper.space.spec import Budget
from trainables.worker.trial_reports import Reason


class Controller(Protocol):
    """Watches something on every turn of the driver and can request a stop."""

    def tick(self, steering: Steering) -> None:
        """Write requests to `steering`. Called on every turn, so do slow checks only at intervals."""


#: Seconds between two checks for the stop marker, which may be on a network file system.
POLL_SECONDS = 0.5


class Steering:
    """Requests of controllers, the stop marker and signals.

    Attributes:
        stop_requested: Reason to end the sweep at once.
        winding_down: Reason to start no more trials; running trials continue to their next rung.
        slots: Number of trials that run at once; `None` if no controller has set it.
    """

    stop_requested: Reason | None = None
    winding_down: Reason | None = None
    slots: int | None = None

    def __init__(self, controllers: Sequence[Controller], marker: Path, clock: Callable[[], float]) -> None:
        """Start without requests.

        Args:
            controllers: Controllers to call on every turn.
            marker: File whose existence requests a stop.
            clock: Clock in seconds.
        """
        self._controllers, self._marker, self._clock = controllers, marker, clock
        self._polled = -math.inf

    @property
    def closing(self) -> Reason | None:
        """Reason why no trial starts any more: a requested stop, or an exhausted budget."""
        return self.stop_requested or self.winding_down

    def ask_to_stop(self, reason: Reason | None) -> None:
        """Request a stop; the first reason is kept."""
        self.stop_requested = self.stop_requested or reason

    def follow(self) -> None:
        """Call all controllers."""
        for controller in self._controllers:
            controller.tick(self)

    def should_stop(self) -> bool:
        """Return whether a stop was requested, by the marker or otherwise."""
        now = self._clock()
        if self.stop_requested is None and now - self._polled >= POLL_SECONDS:
            self._polled = now
            if self._marker.exists():
                self.stop_requested = Reason("asked")
        return self.stop_requested is not None


ACKNOWLEDGED = "Stopping after this epoch; press Ctrl-C again to skip tables and report"
HURRIED = "Skipping tables and report"


@contextmanager
def answered(number: int, answer: Callable[[int, object], object]) -> Iterator[None]:
    """Handle a signal within the block; do nothing outside the main thread."""
    # Python allows only the main thread to set signal handlers; a notebook may run a sweep in another.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, answer)
    try:
        yield
    finally:
        signal.signal(number, before)


class Interrupts:
    """Counts presses of Ctrl-C and answers each at once; use `listening` around interruptible code.

    Attributes:
        presses: Number of presses so far.
    """

    def __init__(self, say: Callable[[str], object] = lambda text: None) -> None:
        """Print answers with `say`."""
        self.presses = 0
        self._say = say
        self._skippable = False

    @contextmanager
    def listening(self) -> Iterator[Interrupts]:
        """Handle Ctrl-C within the block; do nothing outside the main thread."""
        with answered(signal.SIGINT, self._pressed):
            yield self

    @contextmanager
    def skippable(self) -> Iterator[None]:
        """Let the second press raise KeyboardInterrupt within the block, at once if it came before the block."""
        self._skippable = True
        try:
            if self.presses > 1:
                raise KeyboardInterrupt
            yield
        finally:
            self._skippable = False

    def _pressed(self, number: int, frame: object) -> None:
        self.presses += 1
        self._say(ACKNOWLEDGED if self.presses == 1 else HURRIED)
        if self._skippable and self.presses > 1:
            raise KeyboardInterrupt


#: Seconds between two checks of the budget.
LOOK_SECONDS = 1.0


@dataclass
class WorkingTime:
    """Working time of a sweep's drivers, folded from the journal; pauses between them do not count."""

    _seconds: float = 0.0
    _began: float | None = None
    _latest: float = 0.0

    def apply(self, record: Record) -> None:
        """Fold one record; records come in order."""
        # A killed driver has no end record: it worked until its last record.
        if isinstance(record.body, Attempt):
            self._seconds, self._began = self.seconds(self._latest), record.time
        self._latest = record.time

    def seconds(self, now: float) -> float:
        """Return the working seconds up to `now` (Unix time), assuming that the last driver is still running."""
        return self._seconds + (max(0.0, now - self._began) if self._began is not None else 0.0)


@dataclass(eq=False)
class BudgetWatch:
    """Asks the driver to wind down when the budget is reached.

    Attributes:
        budget: Limits of spending.
        spending: Spending of all trials, updated by the driver.
        worked: Working time of all drivers, updated by this one.
        resources: Resources of one trial, `{"cpu": …, "gpu": …}`; the GPU share applies to reports that contain none.
        clock: Clock in Unix seconds.
    """

    budget: Budget
    spending: Spending
    worked: WorkingTime
    resources: Mapping[str, float]
    clock: Callable[[], float] = time.time
    _looked: float = field(default=0.0, init=False)

    def tick(self, steering: Steering) -> None:
        """Check at intervals whether the budget is exhausted."""
        now = self.clock()
        if steering.closing is None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            steering.winding_down = self.reached()

    def spent(self) -> dict[str, float]:
        """Return the spending by kind; trials count up to their last reports."""
        gpu_hours = self.spending.gpu_hours(self.resources["gpu"])
        return {"gpu_hours": gpu_hours, "wall_hours": self.worked.seconds(self.clock()) / 3600}

    def reached(self) -> Reason | None:
        """Return the first exhausted limit of the budget, or `None`."""
        for name, value in self.spent().items():
            limit = getattr(self.budget, name)
            if limit is not None and value >= limit:
                return Reason("budget", {"name": name, "spent": value, "limit": limit, "twice": 2 * limit})
        return None

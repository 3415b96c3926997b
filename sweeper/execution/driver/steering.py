"""What steers a running sweep: controllers, which the driver asks on every turn, its budget, and Ctrl-C.

A controller looks at the budget, at the cluster or at the lease, and says in `Steering` what should
follow; only the driver acts on it. Projections (tables, trackers, metrics) take records and say nothing.

A budget that is reached ends a sweep gently: no trial starts any more, running ones continue to their next rung, where
they are evaluated like any other, and the sweep ends as stopped, with the reason. So what is spent can exceed the
budget by what the running trials take to their next rung. A resume with a larger budget takes them up there.

Ctrl-C is no controller, for the user is answered at once: the first press ends the sweep after this epoch, the second
skips what would follow.
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

from sweeper.core.errors import SweeperError
from sweeper.journal.best import Spending
from sweeper.journal.records import Attempt, Record
from sweeper.space.spec import Budget
from trainables.worker.trial_reports import Reason


class Controller(Protocol):
    """Something that steers."""

    def tick(self, steering: Steering) -> None:
        """Ask for what should follow. Called on every turn: look at what is slow to ask only when it is due."""


POLL_SECONDS = 0.5


class Steering:
    """What controllers, the stop marker and signals have asked for.

    Attributes:
        stop_requested: why the sweep should end at once.
        winding_down: why no trial starts any more, while those that run continue to their next rung.
        slots: how many trials run at once; `None` where nobody has said.
    """

    stop_requested: Reason | None = None
    winding_down: Reason | None = None
    slots: int | None = None

    def __init__(self, controllers: Sequence[Controller], marker: Path, clock: Callable[[], float]) -> None:
        """Begin with nothing asked for.

        Args:
            controllers: are asked on every turn what should follow.
            marker: a file that asks for the end by being there.
            clock: seconds, for looking for it now and then.
        """
        self._controllers, self._marker, self._clock = controllers, marker, clock
        self._polled = -math.inf

    @property
    def closing(self) -> Reason | None:
        """Why no trial starts any more: the sweep was asked to stop, or its budget is exhausted."""
        return self.stop_requested or self.winding_down

    def ask_to_stop(self, reason: Reason | None) -> None:
        """Let the sweep end, for this reason or an earlier one."""
        self.stop_requested = self.stop_requested or reason

    def follow(self) -> None:
        """Let the controllers ask for what should follow."""
        for controller in self._controllers:
            controller.tick(self)

    def should_stop(self) -> bool:
        """Return whether the sweep was asked to stop, by its marker or otherwise."""
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
    """Answer a signal up to the end of the block; only the main thread can, elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, answer)
    try:
        yield
    finally:
        signal.signal(number, before)


class Interrupts:
    """Counts presses of Ctrl-C and answers each at once; use `listening` around what may be interrupted.

    Attributes:
        presses: so far.
    """

    def __init__(self, say: Callable[[str], object] = lambda text: None) -> None:
        """Answer through `say`."""
        self.presses = 0
        self._say = say
        self._skippable = False

    @contextmanager
    def listening(self) -> Iterator[Interrupts]:
        """Take Ctrl-C up to the end of the block; only the main thread can, elsewhere nothing changes."""
        with answered(signal.SIGINT, self._pressed):
            yield self

    @contextmanager
    def skippable(self) -> Iterator[None]:
        """Let the second press raise KeyboardInterrupt in the block; one that came before it does so at once."""
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


def price_from(environment: Mapping[str, str]) -> float | None:
    """Return the price of a GPU-hour from `SWEEPER_GPU_HOUR_PRICE`, or `None` where it is unset or no number."""
    try:
        price = float(environment.get("SWEEPER_GPU_HOUR_PRICE", ""))
    except ValueError:
        return None
    return price if math.isfinite(price) and price >= 0 else None


LOOK_SECONDS = 1.0


@dataclass
class WorkingTime:
    """The time that a sweep's drivers have worked, folded from the journal: pauses between them do not count."""

    _seconds: float = 0.0
    _began: float | None = None
    _latest: float = 0.0

    def apply(self, record: Record) -> None:
        """Fold one record in. Records must come in order."""
        if isinstance(record.body, Attempt):
            self._seconds, self._began = self.seconds(self._latest), record.time
        self._latest = record.time

    def seconds(self, now: float) -> float:
        """Return the seconds up to `now`, in Unix time, where the last driver is still at work."""
        return self._seconds + (max(0.0, now - self._began) if self._began is not None else 0.0)


@dataclass(eq=False)
class BudgetWatch:
    """Asks the driver to wind down when the budget is reached.

    Raises SweeperError when costs are limited and nothing says what an hour costs.

    Attributes:
        budget: what may be spent.
        spending: of all trials, kept up to date by the driver.
        worked: the time that drivers have worked, kept up to date by this one.
        resources: of one trial, `{"cpu": …, "gpu": …}`; the share of a GPU is for reports that name none.
        environment: names a GPU-hour's price where the budget does not.
            clock: Unix time in seconds.
    """

    budget: Budget
    spending: Spending
    worked: WorkingTime
    resources: Mapping[str, float]
    environment: Mapping[str, str]
    clock: Callable[[], float] = time.time
    _looked: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Take the prices, and watch the budget."""
        price, cpu_price = self.budget.gpu_hour_price, self.budget.cpu_hour_price
        self._gpu_price = (price_from(self.environment) if price is None else price) or 0.0
        self._cpu_price = cpu_price or 0.0
        if (
            self.budget.cost is not None
            and not self.resources["gpu"] * self._gpu_price + self.resources["cpu"] * self._cpu_price
        ):
            raise SweeperError(
                f"budget.cost = {self.budget.cost:g}, but no price per hour is set",
                "set budget.gpu_hour_price or budget.cpu_hour_price, or SWEEPER_GPU_HOUR_PRICE in the environment",
            )

    def tick(self, steering: Steering) -> None:
        """Look whether the budget is reached, when it is due."""
        now = self.clock()
        if steering.closing is None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            steering.winding_down = self.reached()

    def spent(self) -> dict[str, float]:
        """Return what has been spent of each kind, trials up to their last reports."""
        gpu_hours = self.spending.gpu_hours(self.resources["gpu"])
        wall = self.worked.seconds(self.clock()) / 3600
        cost = gpu_hours * self._gpu_price + self.spending.hours() * self.resources["cpu"] * self._cpu_price
        return {"gpu_hours": gpu_hours, "wall_hours": wall, "cost": cost}

    def reached(self) -> Reason | None:
        """Return which part of the budget is reached."""
        for name, value in self.spent().items():
            limit = getattr(self.budget, name)
            if limit is not None and value >= limit:
                return Reason("budget", {"name": name, "spent": value, "limit": limit, "twice": 2 * limit})
        return None

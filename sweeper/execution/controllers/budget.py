"""The budget of a sweep: limits, spending so far, and when to stop.

A budget that is reached ends a sweep gently: no trial starts any more, running ones continue to their next rung, where
they are evaluated like any other, and the sweep ends as stopped, with the reason. So what is spent can exceed the
budget by what the running trials take to their next rung. A resume with a larger budget takes them up there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from sweeper.core.errors import SweeperError
from sweeper.execution.controllers.base import Steering
from sweeper.journal.best import Spending
from sweeper.journal.records import Attempt, Record
from sweeper.space.spec import Budget
from sweeper.text.labels import duration


def price_from(environment: Mapping[str, str]) -> float | None:
    """Return the price of a GPU-hour from `SWEEPER_GPU_HOUR_PRICE`, or `None` where it is unset or no number."""
    try:
        price = float(environment.get("SWEEPER_GPU_HOUR_PRICE", ""))
    except ValueError:
        return None
    return price if math.isfinite(price) and price >= 0 else None


LOOK_SECONDS = 1.0

#: How the reason begins for which a spent budget ends a sweep.
BUDGET_REACHED = "the budget is reached"


class WorkingTime:
    """The time that a sweep's drivers have worked, folded from the journal: pauses between them do not count."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._seconds = 0.0
        self._began: float | None = None
        self._latest = 0.0

    def apply(self, record: Record) -> None:
        """Fold one record in. Records must come in order."""
        if isinstance(record.body, Attempt):
            self._seconds, self._began = self.seconds(self._latest), record.time
        self._latest = record.time

    def seconds(self, now: float) -> float:
        """Return the seconds up to `now`, in Unix time, where the last driver is still at work."""
        return self._seconds + (max(0.0, now - self._began) if self._began is not None else 0.0)


class BudgetWatch:
    """Asks the driver to wind down when the budget is reached."""

    def __init__(
        self,
        budget: Budget,
        spending: Spending,
        worked: WorkingTime,
        resources: Mapping[str, float],
        environment: Mapping[str, str],
        tell: Callable[[str], None] = lambda reason: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare to watch.

        Args:
            budget: what may be spent.
            spending: of all trials, kept up to date by the driver.
            worked: the time that drivers have worked, kept up to date by this one.
            resources: of one trial, `{"cpu": …, "gpu": …}`; the share of a GPU is for reports that name none.
            environment: names a GPU-hour's price where the budget does not.
            tell: hears, once, that the budget is reached.
            clock: Unix time in seconds.

        Raises SweeperError when costs are limited and nothing says what an hour costs.
        """
        self._spending, self._worked, self._clock = spending, worked, clock
        self._cpus, self._gpus = resources["cpu"], resources["gpu"]
        price = budget.gpu_hour_price if budget.gpu_hour_price is not None else price_from(environment)
        self._gpu_price, self._cpu_price = price or 0.0, budget.cpu_hour_price or 0.0
        self._tell, self._looked = tell, 0.0
        self.allow(budget)

    def allow(self, budget: Budget) -> None:
        """Watch these limits from now on, at the same prices. Raises SweeperError as above."""
        if budget.cost is not None and not self._gpus * self._gpu_price + self._cpus * self._cpu_price:
            raise SweeperError(
                f"budget.cost = {budget.cost:g}, but no price per hour is set",
                "set budget.gpu_hour_price or budget.cpu_hour_price, or SWEEPER_GPU_HOUR_PRICE in the environment",
            )
        self._budget = budget

    def tick(self, steering: Steering) -> None:
        """Look whether the budget is reached, when it is due."""
        now = self._clock()
        if steering.closing is None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            steering.winding_down = self.reached()
            if steering.winding_down is not None:
                self._tell(steering.winding_down)

    def spent(self) -> dict[str, float]:
        """Return what has been spent of each kind, trials up to their last reports."""
        gpu_hours = self._spending.gpu_hours(self._gpus)
        wall = self._worked.seconds(self._clock()) / 3600
        cost = gpu_hours * self._gpu_price + self._spending.hours() * self._cpus * self._cpu_price
        return {"gpu_hours": gpu_hours, "wall_hours": wall, "cost": cost}

    def reached(self) -> str | None:
        """Return a sentence when the budget is reached."""
        spent = self.spent()
        for name, value in spent.items():
            limit = getattr(self._budget, name)
            if limit is not None and value >= limit:
                detail = f" ({duration(value * 3600)} of work)" if name == "wall_hours" else ""
                return (
                    f"{BUDGET_REACHED}: {name} {value:.4g} of {limit:g}{detail}; "
                    f"go on with `sweeper resume … --set budget.{name}={2 * limit:g}`"
                )
        return None

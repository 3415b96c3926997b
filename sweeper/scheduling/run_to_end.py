"""No early stopping, `none` in a search space: every trial runs to its last epoch.

That is the only rung, unless `evaluate_epochs` names more, at which trials are evaluated and continue. A sweep with the
rungs of another scheduler can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from sweeper.journal.records import Decision
from sweeper.scheduling.base import IGNORES_SETTINGS, SCHEDULERS, Measured, RungState, Scheduler


@SCHEDULERS.add("none", tags={IGNORES_SETTINGS})
@dataclass(frozen=True)
class RunToEnd(Scheduler):
    """Every trial runs to the end; settings of other schedulers are ignored.

    Stops no trial before `max_epochs`.

    Attributes:
        evaluate_epochs: nothing is trained before the first epoch; those from `max_epochs` on are left out
            [none by default: an evaluation takes as long as some epochs].
    """

    compares: ClassVar[bool] = False
    evaluate_epochs: Annotated[Sequence[float] | None, "[1, inf)"] = None

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are evaluated; where none are named, the last one alone."""
        before = {int(epoch) for epoch in self.evaluate_epochs or () if epoch < self.max_epochs}
        return (*sorted(before), self.max_epochs)

    def begin(self) -> Arrivals:
        """Return the state before the first record."""
        return Arrivals(self)


class Arrivals(RungState):
    """Which configurations have reached each epoch of evaluation."""

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Let it continue. Raises ValueError where epoch `rung` is no rung."""
        if rung not in self.epochs:
            raise ValueError(f"epoch {rung} is no rung: trials that run to the end are not compared")
        return Decision("continue", "evaluation", rung, metric)

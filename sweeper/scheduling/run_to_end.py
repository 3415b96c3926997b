"""No early stopping, `none` in a search space: every trial runs to its last epoch.

The last epoch is the only rung unless `evaluate_epochs` names further epochs. At these, trials are evaluated and
continue. If they are the rungs of another scheduler, that scheduler can be replayed on the finished sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from sweeper.journal.records import Decision
from sweeper.scheduling.base import IGNORES_SETTINGS, SCHEDULERS, RungState, Scheduler


@SCHEDULERS.add("none", tags={IGNORES_SETTINGS})
@dataclass(frozen=True)
class RunToEnd(Scheduler):
    """Every trial runs to the end; settings of other schedulers are ignored.

    Stops no trial before `max_epochs`.

    Attributes:
        evaluate_epochs: nothing is trained before the first epoch; those from `max_epochs` on are left out
            [none by default: an evaluation takes as long as some epochs].

    Example:
        >>> RunToEnd("val_nll", "min", max_epochs=27, evaluate_epochs=[3, 9, 81]).rungs
        (3, 9, 27)
    """

    compares: ClassVar[bool] = False
    evaluate_epochs: Annotated[Sequence[float] | None, "[1, inf)"] = None

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are evaluated; only the last one if none are named."""
        # Later epochs are dropped instead of refused, because `--set` or a rehearsal can shorten the run.
        before = {int(epoch) for epoch in self.evaluate_epochs or () if epoch < self.max_epochs}
        return (*sorted(before), self.max_epochs)

    def begin(self) -> Arrivals:
        """Return the state before the first record."""
        return Arrivals(self)


class Arrivals(RungState):
    """The configurations that have reached each epoch of evaluation."""

    def compare(self, rung: int, configuration: int, metric: float) -> Decision:
        """Continue the trial."""
        return Decision("continue", "evaluation", rung, metric)

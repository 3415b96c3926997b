"""The median stopping rule: a trial stops when its best value is worse than what half of the others had on average.

Golovin et al. 2017 (Google Vizier: A Service for Black-Box Optimization, section 3.2.2): a pending trial stops at step
s if its best objective value by step s is strictly worse than the median of the running averages of all completed
trials' objectives reported up to step s. A trial's running average up to step s is the mean of its values at steps
1 … s.

It departs from the paper in this:

* a trial is compared with every other one that has reached step s, whether or not it is complete: where all trials
  start at once, nothing would be complete before the first of them ends;
* a step is a rung. Averages and best values begin at the first rung, `grace_epochs`, and leave out epochs between
  rungs, whose values the journal does not hold;
* no trial stops before `min_competitors` others have reached its rung.

Ray Tune's MedianStoppingRule coincides with it if it is given the same rungs alone and its trials run till they are
stopped. It departs where it may pause instead of stop, where a trial's best value counts before the grace period, and
where the last result counts twice, because Tune hands it in again on completion.
"""

from __future__ import annotations

import math
import statistics
from bisect import insort
from dataclasses import dataclass
from typing import Annotated

from sweeper.journal.records import Decision, DecisionKind
from sweeper.scheduling import base
from sweeper.scheduling.base import SCHEDULERS, Measured, RungState, Scheduler


@SCHEDULERS.add("median_stopping", more=[base.WITHIN, base.TOO_SMALL], check=base.grace_before_the_end)
@dataclass(frozen=True)
class MedianStopping(Scheduler):
    """A trial stops when its best value is worse than the median of the others' running averages.

    The median stopping rule.

    Source: Golovin et al. 2017 (Google Vizier), section 3.2.2.

    Attributes:
        grace_epochs: the first rung.
        interval_epochs: rungs are whole epochs; each costs an evaluation, so the default equals grace_epochs.
        min_competitors: a median needs at least one value, and the median of few is mostly chance [Ray Tune's
            MedianStoppingRule, min_samples_required].
    """

    grace_epochs: base.GraceEpochs = 1
    interval_epochs: Annotated[int | None, "[1, inf)"] = None
    min_competitors: Annotated[int, "[1, inf)"] = 3

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are evaluated and compared; the last one is `max_epochs`."""
        return (*range(self.grace_epochs, self.max_epochs, self.interval_epochs or self.grace_epochs), self.max_epochs)

    @property
    def smallest_pool(self) -> int:
        """One more trial than a comparison takes."""
        return self.min_competitors + 1

    def begin(self) -> RunningAverages:
        """Return the state before the first record."""
        return RunningAverages(self)


class RunningAverages(RungState):
    """The values of every trial, and the running averages of all at each rung, in order."""

    def __init__(self, rule: MedianStopping) -> None:
        """Start with the empty rungs of `rule`."""
        super().__init__(rule)
        self._needed = rule.min_competitors
        self._averages: dict[int, list[float]] = {rung: [] for rung in rule.rungs}

    def add(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> None:
        """Record the value with which a configuration reached a rung, and its running average there."""
        if configuration not in self.arrived[rung]:
            scores = [*self._scores_before(rung, configuration), self.scheduler.score(metric)]
            insort(self._averages[rung], math.fsum(scores) / len(scores))
        super().add(rung, configuration, metric, measured)

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Stop a trial whose best value so far is strictly worse than the median of the others' running averages."""
        scheduler, others = self.scheduler, self.competitors(rung)
        if others < self._needed:
            return Decision("continue", "min_competitors", rung, metric, count=others + 1)
        median = statistics.median(self._averages[rung])
        best = max([*self._scores_before(rung, configuration), scheduler.score(metric)])
        kind: DecisionKind = "stop" if best < median else "continue"
        return Decision(kind, "median", rung, metric, count=others + 1, cutoff=scheduler.score(median))

    def _scores_before(self, rung: int, configuration: int) -> list[float]:
        earlier = (here for at, here in self.arrived.items() if at < rung and configuration in here)
        return [self.scheduler.score(here[configuration][0]) for here in earlier]

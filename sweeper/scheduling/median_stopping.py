"""The median stopping rule: a trial stops when its best value is worse than what half of the others had on average.

Golovin et al. 2017 (Google Vizier: A Service for Black-Box Optimization, section 3.2.2): a pending trial stops at step
s if its best objective value by step s is strictly worse than the median of the running averages of all completed
trials' objectives reported up to step s. A trial's running average up to step s is the mean of its values at steps
1 … s.

Differences from the paper:

* a trial is compared with every other trial that has reached step s, complete or not. Otherwise there would be nothing
  to compare with if all trials start at once;
* a step is a rung. Averages and best values begin at the first rung, `grace_epochs`. They leave out the epochs between
  rungs, because the journal does not contain their values;
* no trial stops before `min_competitors` others have reached its rung.

Ray Tune's MedianStoppingRule makes the same decisions if it sees only the same rungs and its trials run until they are
stopped. In general it differs in three ways: it can pause instead of stop, it includes values before the grace period
in a trial's best value, and it counts the last result twice, because Tune reports it again on completion.
"""

from __future__ import annotations

import math
import statistics
from bisect import insort
from dataclasses import dataclass
from typing import Annotated

from sweeper.journal.records import Decision, DecisionKind
from sweeper.scheduling import base
from sweeper.scheduling.base import SCHEDULERS, RungState, Scheduler


@SCHEDULERS.add("median_stopping", more=[base.WITHIN], check=base.grace_before_the_end)
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

    Example:
        >>> MedianStopping("val_nll", "min", max_epochs=27, grace_epochs=9).rungs
        (9, 18, 27)
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
        """The competitors that a comparison needs, and the trial itself."""
        return self.min_competitors + 1

    def begin(self) -> RunningAverages:
        """Return the state before the first record."""
        return RunningAverages(self)


class RunningAverages(RungState):
    """The values of every trial, and the sorted running averages at each rung."""

    def __init__(self, rule: MedianStopping) -> None:
        """Start with the empty rungs of `rule`."""
        super().__init__(rule)
        self._needed = rule.min_competitors
        self._averages: dict[int, list[float]] = {rung: [] for rung in rule.rungs}

    def add(self, rung: int, configuration: int, metric: float) -> None:
        """Record a configuration's value at a rung, and its running average there."""
        # A second report is ignored, because a resumed trial must not count twice in the median.
        if configuration not in self.arrived[rung]:
            scores = [*self._scores_before(rung, configuration), self.scheduler.score(metric)]
            # fsum is exactly rounded. With `sum`, (.1 + .1 + .1) / 3 is above .1, and equal trials would stop each
            # other.
            insort(self._averages[rung], math.fsum(scores) / len(scores))
        super().add(rung, configuration, metric)

    def compare(self, rung: int, configuration: int, metric: float) -> Decision:
        """Stop a trial whose best value so far is strictly worse than the median of the others' running averages."""
        scheduler, others = self.scheduler, self.competitors(rung)
        if others < self._needed:
            return Decision("continue", "min_competitors", rung, metric, count=others + 1)
        median = statistics.median(self._averages[rung])
        # As in the paper, the best value counts, not the last: a trial with one bad epoch after a good one continues.
        best = max([*self._scores_before(rung, configuration), scheduler.score(metric)])
        # Strictly worse, so that two equal trials do not stop each other.
        kind: DecisionKind = "stop" if best < median else "continue"
        return Decision(kind, "median", rung, metric, count=others + 1, cutoff=scheduler.score(median))

    def _scores_before(self, rung: int, configuration: int) -> list[float]:
        # A trial can lack an earlier rung: its objective may not have been measured there.
        earlier = (arrivals for epoch, arrivals in self.arrived.items() if epoch < rung and configuration in arrivals)
        return [self.scheduler.score(arrivals[configuration]) for arrivals in earlier]

"""Asynchronous successive halving (ASHA) in its two variants.

**Stopping** works like Ray Tune's AsyncHyperBandScheduler: a trial that reaches a rung is compared once with all trials
that reached it earlier, and stops or continues at once. Li et al. 2020 (arXiv:1810.05934) instead pause trials and
promote the best paused one when a worker becomes free. The differences:

* a stopped trial is never resumed, so an early comparison against few competitors is final;
* the first trial at each rung always continues, and more than one in `reduction_factor` is promoted
  (of 48 trials at rungs 3/9/27, 17.6 reach the second rung on average, not 16, and 9.3 the third, not 5.3);
* the cut-off is the (1 − 1/reduction_factor) quantile, linearly interpolated, of the *others'* values.

`keep_at_least: k` is not part of ASHA. With it, a trial that is beaten by fewer than k earlier trials always continues.
So the best k trials of a pool are never stopped at a rung, whatever their order of arrival.

Unlike in Ray's class, a non-finite value fails the trial at once. Rungs are whole epochs computed without logarithms.
Trials are identified by their configuration, so a resumed trial cannot compete with itself.

**Promotion** is algorithm 2 of Li et al.: a trial pauses at its rung. When a worker is free, it goes through the rungs
from the highest down and searches for a paused trial among the best ⌊n/η⌋ of a rung's n trials. It continues the best
of these; if there is none, a new trial begins. If a trial would be promoted as soon as it arrives, it continues without
a pause: in the algorithm, the worker that it frees would promote it at once.

There is one difference: the number of trials is finite, so a worker can run out of work. Once all trials have reached a
rung and none can be promoted, the paused trials are stopped. With `keep_at_least: k`, the best k of every rung are
promoted before that, so small strata also have a trial that finishes. This happens as soon as no other trial of the
pool can still reach the rung. It does not wait for other pools, or for trials beyond the rung.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from sweeper.journal.records import Decision, DecisionKind
from sweeper.scheduling import base
from sweeper.scheduling.base import SCHEDULERS, RungState, Scheduler, Settled
from trainables.registry import Hyperparameter, hyperparameters_of

#: (Minus the score, order of arrival). The best trial of a rung has the smallest key; of equal trials, the earlier.
Key = tuple[float, int]

#: Name of the rule for the first trial at a rung, which cannot be compared with another.
FIRST = "first"

#: Name of the setting in a decision's `kept_by`.
KEEP_AT_LEAST = "keep_at_least"


@dataclass(frozen=True)
class Halving(Scheduler):
    """Asynchronous successive halving.

    Attributes:
        grace_epochs: the first rung.
        reduction_factor: below 2, more than half of the trials would continue [Li et al. 2018 (Hyperband), section 2.6:
            the theory's optimum is e ≈ 2.72].
        keep_at_least: number of trials that continue from every rung, in each stratum or in the sweep [none by
            default, as in Li et al. 2020].

    Example:
        >>> Halving("val_nll", "min", max_epochs=27, grace_epochs=3).rungs
        (3, 9, 27)
    """

    grace_epochs: base.GraceEpochs = 1
    reduction_factor: Annotated[float, Hyperparameter(kind="integer", range="[2, inf)")] = 3
    keep_at_least: Annotated[int | None, "[1, inf)"] = None

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are evaluated and compared; the last one is `max_epochs`."""
        # Ray truncates a float logarithm, which can lose a rung if the quotient is an exact power.
        rungs, epoch = [], float(self.grace_epochs)
        while epoch < self.max_epochs:
            rungs.append(int(epoch))
            epoch *= self.reduction_factor
        return (*rungs, self.max_epochs)

    def begin(self) -> RungState:
        """Return the state before the first record."""
        return Rungs(self)

    @property
    def smallest_pool(self) -> int:
        """The reduction factor: in a smaller pool, not even one trial continues on average."""
        return math.ceil(self.reduction_factor)


class Rung:
    """The trials that reached a rung, and those that pause there."""

    def __init__(self) -> None:
        """Start empty."""
        self.keys: dict[int, Key] = {}
        # Kept sorted, so that a cut-off or a rank costs a bisection. Sorting 10,000 trials at every report would be
        # slow.
        self._ordered: list[Key] = []
        self._paused: list[tuple[Key, int]] = []

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, configuration: int, score: float) -> None:
        """Record a configuration's arrival. A second arrival is ignored, because its decision has been made."""
        if configuration not in self.keys:
            key = self.keys[configuration] = (-score, len(self))
            insort(self._ordered, key)
            insort(self._paused, (key, configuration))

    def promote(self, configuration: int) -> None:
        """Remove a configuration from the paused trials, if it pauses here."""
        paused = (self.keys.get(configuration), configuration)
        if paused in self._paused:
            self._paused.remove(paused)

    def better_than(self, score: float) -> int:
        """Return the number of strictly larger scores."""
        # −1 sorts before every order of arrival, so equal scores are not counted.
        return bisect_left(self._ordered, (-score, -1))

    def quantile(self, share: float) -> float | None:
        """Return the linearly interpolated quantile of the scores, or `None` when there are none."""
        # Equal to `numpy.percentile`, which Ray uses, to the last bit (it interpolates from the nearer end), but
        # without a sort.
        if not self._ordered:
            return None
        position = share * (len(self) - 1)
        index = math.floor(position)
        weight = position - index
        low, high = (-self._ordered[max(len(self) - 1 - at, 0)][0] for at in (index, index + 1))
        return low + (high - low) * weight if weight < 0.5 else high - (high - low) * (1 - weight)

    def place(self, configuration: int) -> int:
        """Return the rank of a configuration among all that arrived, counted from 0."""
        return bisect_left(self._ordered, self.keys[configuration])

    def first(self, quota: int) -> tuple[int, int] | None:
        """Return the best paused configuration and its rank, if it is among the best `quota` of the rung."""
        leader = self._paused[0][1] if self._paused else None
        return None if leader is None or self.place(leader) >= quota else (leader, self.place(leader))

    def place_of(self, score: float) -> tuple[int, int]:
        """Return the rank of a new arrival, and the number of better trials that pause."""
        key = (-score, len(self))
        return bisect_left(self._ordered, key), bisect_left(self._paused, (key, -1))


class Rungs(RungState):
    """The values at every rung of a sweep, sorted."""

    scheduler: Halving

    def __init__(self, halving: Halving) -> None:
        """Start with the empty rungs of `halving`."""
        super().__init__(halving)
        self.by_epoch = {epoch: Rung() for epoch in halving.rungs}

    def add(self, rung: int, configuration: int, metric: float) -> None:
        """Record the value with which a configuration arrived at a rung."""
        self.by_epoch[rung].add(configuration, self.scheduler.score(metric))

    def competitors(self, rung: int) -> int:
        """Return the number of configurations that have reached a rung."""
        return len(self.by_epoch[rung])

    def compare(self, rung: int, configuration: int, metric: float) -> Decision:
        """Stop a trial whose value is worse than the quantile of the others', unless it is kept.

        A score is the value, negated if small values are better.
        """
        settings, others, score = self.scheduler, self.by_epoch[rung], self.scheduler.score(metric)
        # Ray passes a percentage to numpy, which divides it by 100 again. The round trip changes the last bit, which
        # matters for a trial exactly at the cut-off.
        cutoff = others.quantile((1 - 1 / settings.reduction_factor) * 100 / 100)
        # Ray also continues the first arrival: without a competitor there is no cut-off.
        if cutoff is None:
            return Decision("continue", FIRST, rung, metric, place=1, count=1)
        better, worse = others.better_than(score), score < cutoff
        kept = worse and settings.keep_at_least is not None and better < settings.keep_at_least
        return Decision(
            "stop" if worse and not kept else "continue",
            "cutoff",
            rung,
            metric,
            place=better + 1,
            count=len(others) + 1,
            cutoff=settings.score(cutoff),
            kept_by=KEEP_AT_LEAST if kept else None,
        )


@dataclass(frozen=True)
class Promotion(Halving):
    """Successive halving by promotion: every trial pauses at its rung."""

    pauses: ClassVar[bool] = True

    def begin(self) -> RungState:
        """Return the state before the first record."""
        return PausedRungs(self)


class PausedRungs(Rungs):
    """The trials that reached each rung, were promoted from it, or pause there."""

    def decided(self, configuration: int, decision: Decision) -> None:
        """Record that a configuration left its rung."""
        if decision.kind == "continue" and decision.rung is not None:
            self.by_epoch[decision.rung].promote(configuration)

    def compare(self, rung: int, configuration: int, metric: float) -> Decision:
        """Continue a trial that would be promoted now; pause any other."""
        arrivals = self.by_epoch[rung]
        count, (place, better_paused) = len(arrivals) + 1, arrivals.place_of(self.scheduler.score(metric))
        # Algorithm 2 promotes from the highest rung down, so a promotable trial at a higher rung gets the worker first.
        above = any(self._promotable(epoch) for epoch in self._before_the_end() if epoch > rung)
        leads = place < self._quota(count) and not better_paused
        return self._decision("continue" if leads and not above else "pause", rung, metric, place, count)

    def promotion(self, settled: Settled = lambda stratum, rung: False) -> tuple[int, Decision] | None:
        """Return the paused trial to promote when a worker is free, and its decision; `None` to begin a new trial."""
        least = self.scheduler.keep_at_least or 0
        for epoch in reversed(self._before_the_end()):
            rung = self.by_epoch[epoch]
            candidate = self._promotable(epoch) or rung.first(least)
            if candidate is None:
                continue
            (configuration, place), count = candidate, len(rung)
            beyond = place >= self._quota(count)
            # The quota alone would not promote this trial, and a trial that has yet to arrive could be better.
            if beyond and not settled(None, epoch):
                continue
            metric = self.scheduler.score(-rung.keys[configuration][0])
            kept_by = KEEP_AT_LEAST if beyond else None
            return configuration, self._decision("continue", epoch, metric, place, count, kept_by)
        return None

    def never_promoted(self, rung: int, configuration: int) -> Decision:
        """Return the decision on a paused trial once nothing is left that could promote it."""
        arrivals = self.by_epoch[rung]
        metric = self.scheduler.score(-arrivals.keys[configuration][0])
        return self._decision("stop", rung, metric, arrivals.place(configuration), len(arrivals))

    def _before_the_end(self) -> tuple[int, ...]:
        return self.scheduler.rungs[:-1]

    def _promotable(self, epoch: int) -> tuple[int, int] | None:
        return self.by_epoch[epoch].first(self._quota(len(self.by_epoch[epoch])))

    def _quota(self, count: int) -> int:
        return math.floor(count / self.scheduler.reduction_factor)

    def _decision(
        self, kind: DecisionKind, rung: int, metric: float, place: int, count: int, kept_by: str | None = None
    ) -> Decision:
        quota = self._quota(count)
        return Decision(kind, "quota", rung, metric, place=place + 1, count=count, quota=quota, kept_by=kept_by)


VARIANT = Hyperparameter(
    "variant",
    "text",
    choices=("stopping", "promotion"),
    source="stopping by default: no worker waits, and no trial is resumed",
)


@SCHEDULERS.add(
    "asha",
    apart=["variant"],
    more=[*hyperparameters_of(Halving, "asha", ["metric", "mode"], ()), VARIANT, base.WITHIN],
    check=base.grace_before_the_end,
)
def build(metric: str, mode: Literal["min", "max"], *, variant: str | None = None, **settings: Any) -> Halving:
    """Asynchronous successive halving: a trial continues if it is among the best 1/reduction_factor at its rung.

    Build the scheduler in the given variant, `stopping` by default.

    Source: Li et al. 2020 (arXiv:1810.05934); unless variant is promotion, the stopping variant of Ray Tune.

    Example:
        >>> build("val_nll", "min", variant="promotion", max_epochs=9, grace_epochs=1)
        Promotion(metric='val_nll', mode='min', max_epochs=9, grace_epochs=1, reduction_factor=3, keep_at_least=None)
    """
    return (Promotion if variant == "promotion" else Halving)(metric, mode, **settings)

"""Asynchronous successive halving (ASHA) in its two variants.

**Stopping** works as Ray Tune's AsyncHyperBandScheduler: a trial that reaches a rung is compared once with everything
that reached the rung before it, and either stops there or continues at once. It departs from Li et al. 2020
(arXiv:1810.05934), whose algorithm pauses trials and promotes the best of the paused ones when a worker falls free:

* nothing is ever resumed after a stop, so an early comparison against few competitors is final;
* the first trial at each rung always continues, and more than one in `reduction_factor` is promoted
  (of 48 trials at rungs 3/9/27, 17.6 reach the second rung on average, not 16, and 9.3 the third, not 5.3);
* the cut-off is the (1 − 1/reduction_factor) quantile, linearly interpolated, of the *others'* values.

`keep_at_least: k` is no part of ASHA: a trial that fewer than k of those before it beat continues in any case, so the
best k of a pool are never stopped at a rung, in whatever order they come.

Unlike Ray's class, a value that is not a finite number ends the trial as failed at once, rungs are whole epochs
computed without logarithms, and trials are known by their configuration, so a resumed trial cannot compete
with itself.

With several objectives, or one under constraints, it is multi-objective ASHA (Schmucker, Donini, Zafar, Salinas &
Archambeau 2021, arXiv:2106.12639): a trial that reaches a rung is ranked with everything that reached it before
(`sweeper.scheduling.ranking`) and continues if its place among the n of them, counted from 0, is at most
n / reduction_factor; the first one always continues. Syne Tune 0.16's MOASHA follows the same rule. It departs in the
order that it ranks by: its NonDominatedPriority returns the sorted trials' indices where their ranks are meant, and its
ε-net ranks where an order is meant, so what becomes of a trial there depends on when the worst one came. With
priorities that are ranks the decisions are equal (`tests/sweeper/scheduling/test_multi_objective.py`), without standard
errors and constraints and with raw distances.

**Promotion** is Li et al.'s algorithm 2: a trial pauses at its rung, and when a worker is free, the best of the ⌊n/η⌋
leading trials of a rung's n that was not promoted yet continues, from the highest rung down; where there is none, a new
trial begins. A trial that its own arrival makes the one to promote continues without a pause, as the algorithm would
have the worker that it frees promote it at once.

It departs in this: trials are finite in number, so a worker may find nothing to do; once all trials have come to a rung
and none is to be promoted, those that still pause are stopped. With `keep_at_least: k` the best k of every rung are
promoted before that, once no other trial of the pool is on its way to that rung, so that small strata have a trial that
finishes. Other pools, and trials that run beyond the rung, are not waited for.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sweeper.journal.best import Objective
from sweeper.journal.records import BREAKS_CONSTRAINT, Decision, DecisionKind
from sweeper.scheduling import base
from sweeper.scheduling.base import SCHEDULERS, Measured, RungState, Scheduler, Settled
from sweeper.scheduling.ranking import Constraint, Ranking, rank
from trainables.registry import Hyperparameter, hyperparameters_of

#: Minus the score, and the order of arrival: the best trial of a rung has the smallest.
Key = tuple[float, int]

#: The rule of a decision on a rung's first trial, which nothing is compared with.
FIRST = "first"

#: The setting that a decision names as what kept a trial.
KEEP_AT_LEAST = "keep_at_least"


@dataclass(frozen=True)
class Halving(Scheduler):
    """Asynchronous successive halving.

    Attributes:
        grace_epochs: the first rung.
        reduction_factor: below 2, more than half of the trials would continue [Li et al. 2018 (Hyperband), section 2.6:
            the theory's optimum is e ≈ 2.72].
        keep_at_least: it counts trials of each stratum, or of the sweep, that continue from every rung [none by
            default, as in Li et al. 2020].
    """

    grace_epochs: base.GraceEpochs = 1
    reduction_factor: Annotated[float, Hyperparameter(kind="integer", range="[2, inf)")] = 3
    keep_at_least: Annotated[int | None, "[1, inf)"] = None

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are evaluated and compared; the last one is `max_epochs`."""
        rungs, epoch = [], float(self.grace_epochs)
        while epoch < self.max_epochs:
            rungs.append(int(epoch))
            epoch *= self.reduction_factor
        return (*rungs, self.max_epochs)

    def begin(self) -> RungState:
        """Return the state before the first record."""
        return Rungs(self)

    def comparing(self, goals: tuple[Objective, ...], constraints: tuple[Constraint, ...]) -> Scheduler | None:
        """Return successive halving by several objectives, or under constraints."""
        return RankedHalving(**vars(self), goals=goals, constraints=constraints)

    @property
    def smallest_pool(self) -> int:
        """As many trials as the reduction factor: of fewer, not even one is stopped on average."""
        return math.ceil(self.reduction_factor)

    @property
    def quantile(self) -> float:
        """The share of competitors whose values must not be better for a trial to continue.

        Ray's scheduler asks numpy for a percentile, and numpy divides by 100 again; the round trip through percent
        moves the share by a bit in its last place, and with it a cut-off that a trial may lie exactly on.
        """
        return (1 - 1 / self.reduction_factor) * 100 / 100

    def kept_by(self, better: int) -> str | None:
        """Return the setting by which a trial that `better` others beat continues in any case, if there is one."""
        return KEEP_AT_LEAST if self.keep_at_least is not None and better < self.keep_at_least else None


class Rung:
    """The trials that reached a rung, in order so that neither a cut-off nor a place costs a sort, and who pauses."""

    def __init__(self) -> None:
        """Start empty."""
        self.keys: dict[int, Key] = {}
        self._ordered: list[Key] = []
        self._paused: list[tuple[Key, int]] = []

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, configuration: int, score: float) -> None:
        """Record a configuration's arrival once; a second one is ignored, for its decision has been made."""
        if configuration not in self.keys:
            key = self.keys[configuration] = (-score, len(self))
            insort(self._ordered, key)
            insort(self._paused, (key, configuration))

    def promote(self, configuration: int) -> None:
        """Let a configuration leave for the next rung, if it pauses here."""
        paused = (self.keys.get(configuration), configuration)
        if paused in self._paused:
            self._paused.remove(paused)

    def better_than(self, score: float) -> int:
        """Return how many scores are strictly larger."""
        return bisect_left(self._ordered, (-score, -1))

    def quantile(self, share: float) -> float | None:
        """Return the linearly interpolated quantile of the scores, or `None` when there are none.

        The interpolation follows `numpy.percentile` to the last bit, as Ray's scheduler uses it.
        """
        if not self._ordered:
            return None
        position = share * (len(self) - 1)
        index = math.floor(position)
        weight = position - index
        low, high = (-self._ordered[max(len(self) - 1 - at, 0)][0] for at in (index, index + 1))
        return low + (high - low) * weight if weight < 0.5 else high - (high - low) * (1 - weight)

    def place(self, configuration: int) -> int:
        """Return the place of a configuration among all that arrived, counted from 0."""
        return bisect_left(self._ordered, self.keys[configuration])

    def first(self, quota: int) -> tuple[int, int] | None:
        """Return the best paused configuration and its place, if it is among the first `quota` of the rung."""
        leader = self._paused[0][1] if self._paused else None
        return None if leader is None or self.place(leader) >= quota else (leader, self.place(leader))

    def place_of(self, score: float) -> tuple[int, int]:
        """Return the place that a new arrival takes, and how many better ones pause."""
        key = (-score, len(self))
        return bisect_left(self._ordered, key), bisect_left(self._paused, (key, -1))


class Rungs(RungState):
    """The values seen at every rung of a sweep."""

    scheduler: Halving

    def __init__(self, halving: Halving) -> None:
        """Start with the empty rungs of `halving`."""
        super().__init__(halving)
        self.by_epoch = {epoch: Rung() for epoch in halving.rungs}

    def add(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> None:
        """Record the value with which a configuration arrived at a rung."""
        self.by_epoch[rung].add(configuration, self.scheduler.score(metric))

    def competitors(self, rung: int) -> int:
        """Return how many configurations have reached a rung."""
        return len(self.by_epoch[rung])

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Stop a trial whose value is worse than the quantile of the others'."""
        scheduler, others = self.scheduler, self.by_epoch[rung]
        cutoff_score, score = others.quantile(scheduler.quantile), scheduler.score(metric)
        if cutoff_score is None:
            return Decision("continue", FIRST, rung, metric, place=1, count=1)
        better = others.better_than(score)
        worse, kept_by = score < cutoff_score, scheduler.kept_by(better) if score < cutoff_score else None
        return Decision(
            *("stop" if worse and not kept_by else "continue", "cutoff", rung, metric),
            place=better + 1,
            count=len(others) + 1,
            cutoff=scheduler.score(cutoff_score),
            kept_by=kept_by,
        )


@dataclass(frozen=True)
class RankedHalving(Halving):
    """Successive halving by a ranking.

    Attributes:
        goals: the objectives; the first is the scheduler's own `metric`.
        constraints: what trials must keep to.
        normalise: whether distances within a front are taken in shares of each objective's range.
    """

    goals: tuple[Objective, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    normalise: bool = True

    @property
    def metrics(self) -> tuple[str, ...]:
        """Everything that a ranking uses."""
        return tuple(dict.fromkeys(each.metric for each in (*self.goals, *(c.goal for c in self.constraints))))

    def begin(self) -> RungState:
        """Return the state before the first record."""
        return RankedRungs(self)


class RankedRungs(RungState):
    """What every trial measured at every rung."""

    scheduler: RankedHalving

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Stop a trial that is not among the best 1/reduction_factor."""
        halving, others = self.scheduler, self.competitors(rung)
        if not others:
            return Decision("continue", FIRST, rung, metric, place=1, count=1)
        found = self._ranking(rung, measured)
        place, count = found.order.index(others), others + 1
        beyond = place / count > 1 / halving.reduction_factor
        kept_by = halving.kept_by(place) if beyond else None
        return Decision(
            "stop" if beyond and not kept_by else "continue",
            "ranking" if found.front[-1] else BREAKS_CONSTRAINT,
            *(rung, metric),
            place=place + 1,
            count=count,
            quota=math.floor(count / halving.reduction_factor) + 1,
            kept_by=kept_by,
        )

    def keeps_to_constraints(self, rung: int, measured: Measured | None = None) -> bool:
        """Return whether a trial that reaches a rung keeps to the constraints, beside those that reached it before."""
        return self._ranking(rung, measured).front[-1] > 0

    def _ranking(self, rung: int, measured: Measured | None) -> Ranking:
        """Rank a trial that reaches a rung, as the last one, with those that reached it before."""
        return ranking(self.scheduler, [*(each for _, each in self.arrived[rung].values()), measured or {}])


def ranking(halving: RankedHalving, measured: list[Measured]) -> Ranking:
    """Rank trials by what they measured."""

    def column(metric: str, part: int) -> NDArray[np.float64]:
        return np.array([each.get(metric, (math.nan, 0.0))[part] for each in measured], dtype=np.float64)

    costs = np.stack([column(g.metric, 0) * (1 if g.mode == "min" else -1) for g in halving.goals], axis=1)
    errors = np.stack([column(g.metric, 1) for g in halving.goals], axis=1)
    violated = (each.violations(column(each.goal.metric, 0)) for each in halving.constraints)
    violations = sum(violated, start=np.zeros(len(measured)))
    violations[~np.isfinite(costs).all(axis=1)] = np.inf
    return rank(costs, errors, violations, normalise=halving.normalise)


@dataclass(frozen=True)
class Promotion(Halving):
    """Successive halving by promotion: every trial waits at its rung."""

    pauses: ClassVar[bool] = True

    def comparing(self, goals: tuple[Objective, ...], constraints: tuple[Constraint, ...]) -> None:
        """Return `None`: who is promoted from a ranking of several objectives, no paper says."""

    def begin(self) -> RungState:
        """Return the state before the first record."""
        return PausedRungs(self)


class PausedRungs(Rungs):
    """Who reached each rung, who was promoted from it, and who pauses there."""

    def decided(self, configuration: int, decision: Decision) -> None:
        """Note that a configuration left its rung."""
        if decision.kind == "continue" and decision.rung is not None:
            self.by_epoch[decision.rung].promote(configuration)

    def leave(self, configuration: int) -> None:
        """Let a configuration leave the rung at which it pauses."""
        for rung in self.by_epoch.values():
            rung.promote(configuration)

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Let a trial continue if it is the one to promote now, and pause else."""
        here = self.by_epoch[rung]
        count, (place, better_paused) = len(here) + 1, here.place_of(self.scheduler.score(metric))
        above = any(self._promotable(epoch) for epoch in self._before_the_end() if epoch > rung)
        leads = place < self._quota(count) and not better_paused
        return self._decision("continue" if leads and not above else "pause", rung, metric, place, count)

    def promotion(self, settled: Settled = lambda stratum, rung: False) -> tuple[int, Decision] | None:
        """Return the paused trial to promote when a worker is free, and the decision on it; `None` to begin another."""
        least = self.scheduler.keep_at_least or 0
        for epoch in reversed(self._before_the_end()):
            here, found = self.by_epoch[epoch], self._promotable(epoch) or self.by_epoch[epoch].first(least)
            if found is None:
                continue
            (configuration, place), count = found, len(here)
            beyond = place >= self._quota(count)
            if beyond and not settled(None, epoch):
                continue
            metric = self.scheduler.score(-here.keys[configuration][0])
            kept_by = KEEP_AT_LEAST if beyond else None
            return configuration, self._decision("continue", epoch, metric, place, count, kept_by)
        return None

    def never_promoted(self, rung: int, configuration: int) -> Decision:
        """Return the decision on a trial that pauses at a rung when nothing is left that could promote it."""
        here = self.by_epoch[rung]
        metric = self.scheduler.score(-here.keys[configuration][0])
        return self._decision("stop", rung, metric, here.place(configuration), len(here))

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
    more=[*hyperparameters_of(Halving, "asha", ["metric", "mode"], ()), VARIANT, base.WITHIN, base.TOO_SMALL],
    check=base.grace_before_the_end,
)
def build(metric: str, mode: Literal["min", "max"], *, variant: str | None = None, **settings: Any) -> Halving:
    """Asynchronous successive halving: a trial continues if it is among the best 1/reduction_factor at its rung.

    Return the scheduler in the variant that a search space names; `stopping` where it names none.

    Source: Li et al. 2020 (arXiv:1810.05934); unless variant is promotion, the stopping variant of Ray Tune.
    """
    return (Promotion if variant == "promotion" else Halving)(metric, mode, **settings)

"""Which configurations may be the best, and how far the winner's value can be trusted. No I/O.

Picking the best of many configurations by the mean of a few replicates has two problems. Other configurations may be as
good. The winner's mean is too good, because luck helped to choose it. `best_set` addresses both.

The set comes from multiple comparisons with the best (Hsu 1984, Constrained simultaneous confidence intervals for
multiple comparisons with the best), extended to unequal spreads (`spreads`). A configuration i is excluded if some
other j leads by more than luck explains. The lead required is √(hᵢ² + hⱼ²), where h is the error that a mean exceeds
with probability a. The level a of one comparison is chosen so that all comparisons of i together miss with a
probability of 5 %. This accounts for i's error, which all its comparisons share, and holds in the least favourable
case, in which all true means are equal. The probability is counted over draws of all errors (a parametric bootstrap of
the fitted spreads).

The winner's interval holds however the winner was chosen. The winner's error is at most the largest error of all
configurations that entered, whether trained to the end or not. So the side that the selection favours is as wide as for
the largest of so many errors. The interval also covers early stopping, which selects survivors by the same seeds'
earlier values. The result is an interval, not a corrected value: a correction would need to know how values at rungs
and at the last epoch are related. Values on fresh seeds need neither the wider side nor a correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweeper.core.statistics.spreads import LEVEL, Floats, Spreads, spreads

#: The stated probability that the set contains the truly best configuration. The set is computed at 95 %, but misses
#: the best in up to 9 to 12 % of cases where spreads are very unequal (tests/benchmarks/STATISTICS.md).
SURE = "90 %"

#: Intervals whose ends differ by more than this factor are not shown.
WIDEST = 10.0

#: Levels of one comparison that are tried: evenly spaced down to 2 %, then by factors, since the tail needs small ones.
_LEVELS = np.concatenate([np.linspace(0.5, 0.02, 49)[:-1], np.geomspace(0.02, 1e-8, 60)])

#: Draws of all errors: a probability of 5 % then has a standard error of 0.35 %.
_DRAWS = 4000

#: Above this many configurations the union bound decides instead of draws, which would take too long.
_MOST_DRAWN = 400

#: Each configuration is compared with at most this many others by mean, and as many by lower confidence limit.
_RIVALS = 64


@dataclass(frozen=True)
class BestSet:
    """The configurations that may be the best, and the winner's value.

    Attributes:
        members: indices of the set's configurations, best mean first: the winner, then the configurations it does not
            beat.
        configurations: number of configurations compared.
        entered: number of configurations the winner was chosen from; larger than `configurations` after early stopping.
        value: the winner's mean.
        interval: 95 % interval of the winner's true mean; the side that the selection favours is wider.
        paired: whether all configurations share their seeds and were compared seed by seed.
        replicates: smallest number of replicates of any configuration.
    """

    members: tuple[int, ...]
    configurations: int
    entered: int
    value: float
    interval: tuple[float, float]
    paired: bool
    replicates: int

    @property
    def is_bounded(self) -> bool:
        """Whether the winner's interval is narrow enough to be informative."""
        low, high = self.interval
        return high - low <= abs(self.value) or 0 < high <= WIDEST * low


def best_set(values: Sequence[Mapping[int, float]], mode: str, entered: int | None = None) -> BestSet | None:
    """Return the configurations that may be the best; None where no spread can be estimated.

    Args:
        values: seed → finite value, for each configuration.
        mode: `min` or `max`: which is better.
        entered: number of configurations the winner was chosen from, if more than have values.

    Example:
        >>> values = [{0: 0.10, 1: 0.11, 2: 0.10}, {0: 0.11, 1: 0.10, 2: 0.10}, {0: 0.30, 1: 0.31, 2: 0.32}]
        >>> best_set(values, "min").members
        (0, 1)
    """
    places = [place for place, by_seed in enumerate(values) if by_seed]
    known = spreads([values[place] for place in places], mode)
    if known is None:
        return None
    order = np.argsort(-known.scores, kind="stable")
    winner, total = int(order[0]), max(entered or 0, len(places))
    may_be_best = Comparisons(known).may_be_best
    members = tuple(places[at] for at in order if may_be_best[at])
    value, interval = known.value(known.scores[winner]), known.interval(winner, chosen_from=total)
    return BestSet(members, len(places), total, value, interval, known.paired, int(known.sizes.min()))


def level_of(look: int) -> float:
    """Return the level of one of several tests on growing data; `look` is the test's number, from 1.

    Test k spends 5 % / (k(k + 1)) of the error, so all tests together spend at most 5 %, however many there are. More
    seeds can therefore be added and tested later. Configurations eliminated by a test do not return. Error spending:
    Lan & DeMets 1983, Discrete sequential boundaries for clinical trials; the union bound assumes nothing about how the
    tests depend on each other.
    """
    return 1 - (1 - LEVEL) / (look * (look + 1))


@dataclass(frozen=True)
class Comparisons:
    """All comparisons of k configurations at once."""

    spreads: Spreads
    level: float = LEVEL

    @cached_property
    def _quantiles(self) -> Floats:
        return self.spreads.alone.quantiles(_LEVELS)

    @cached_property
    def may_be_best(self) -> NDArray[np.bool_]:
        """Whether each configuration may be the best, [k]."""
        miss, others = 1 - self.level, len(self.spreads.scores) - 1
        if not others:
            return np.ones(1, dtype=bool)
        levels = self._sharpest_levels()
        inside = levels * others > miss
        if others < _MOST_DRAWN:
            for at in np.flatnonzero(inside & (levels <= miss)):
                inside[at] = self._missed(int(at), levels[at]) > miss
        return np.asarray(inside)

    def is_behind(self, at: int, other: int) -> bool:
        """Return whether a configuration is worse than another, corrected for its k − 1 comparisons."""
        gap = self.spreads.scores[other] - self.spreads.scores[at]
        reached = np.hypot(self._quantiles[at], self._quantiles[other]) <= gap
        share = _LEVELS[reached.sum() - 1] if reached.any() else 1.0
        return bool(share * max(1, len(self.spreads.scores) - 1) <= 1 - self.level)

    def reach(self, best: int, other: int) -> float:
        """Return the lead over the truly best one that `other` may owe to its error, simultaneously for all others."""
        miss, low, high = 1 - self.level, 0, len(_LEVELS) - 1
        if len(self.spreads.scores) > _MOST_DRAWN:
            low = high = int(np.searchsorted(-_LEVELS * (len(self.spreads.scores) - 1), -miss))
        while low < high:  # the largest level of one comparison at which all together miss rarely enough
            middle = (low + high) // 2
            low, high = (low, middle) if self._missed(best, _LEVELS[middle]) <= miss else (middle + 1, high)
        return float(np.hypot(self._quantiles[best, low], self._quantiles[other, low]))

    def _sharpest_levels(self) -> Floats:
        """Return for each configuration the smallest level at which another one beats it, [k]."""
        scores, h = self.spreads.scores, self._quantiles
        sure = scores - h[:, np.searchsorted(-_LEVELS, -0.02)]
        rivals = np.unique(np.concatenate([np.argsort(-scores)[:_RIVALS], np.argsort(-sure)[:_RIVALS]]))
        sharpest = np.ones(len(scores))
        for at in range(len(scores)):
            others = rivals[rivals != at]
            reached = np.hypot(h[at], h[others]) <= (scores[others] - scores[at])[:, None]
            count = int(reached.sum(axis=1).max(initial=0))
            if count:
                sharpest[at] = _LEVELS[count - 1]
        return sharpest

    def _missed(self, at: int, level: float) -> float:
        """Return the probability that another configuration beats `at` at this level if all true means are equal."""
        h = self._quantiles[:, int(np.searchsorted(-_LEVELS, -level))]
        needed = np.hypot(h, h[at])
        needed[at] = np.inf  # a configuration does not lead itself
        return float(np.mean((self._errors - self._errors[at] > needed[:, None]).any(axis=0)))

    @cached_property
    def _errors(self) -> Floats:
        """Draws of every mean's error, [k, draws], independent of the order of the configurations."""
        # The draws are the last axis: with few configurations, numpy compares them at least twice as fast.
        known, rng = self.spreads, np.random.default_rng(0)
        drawn = np.empty((len(known.scores), _DRAWS))
        for at in np.argsort(-known.scores, kind="stable"):
            cumulative = known.weights[at].cumsum()
            places = np.searchsorted(cumulative / cumulative[-1], rng.random(_DRAWS))
            drawn[at] = known.deviations[places] * rng.standard_normal(_DRAWS)
        return np.asarray(drawn / np.sqrt(known.sizes)[:, None])


@dataclass(frozen=True)
class Lost:
    """An upper bound on how much worse the leader is than the best configuration.

    Attributes:
        leader: index of the best mean.
        value: the bound on the objective's scale, at least 0; 0 if no other configuration may be the best.
        ratio: the worse value over the better one, at least 1; None if one of them is not positive.
    """

    leader: int
    value: float
    ratio: float | None


def most_lost(known: Spreads, level: float = 0.9, against: Sequence[int] | None = None) -> Lost:
    """Bound how much worse the configuration with the best mean is than the truly best of k configurations.

    With probability `level`, all errors eᵢ satisfy eᵢ − e_b ≤ w_b(i), where b is the truly best one (`Comparisons`).
    So the leader is worse than b by at most score_b − score_leader + w_b(leader). As b is unknown, the bound is the
    largest of these over all configurations that may be the best. Source: Hsu 1981, Simultaneous confidence
    intervals for all distances from the "best", Eq. (2.4), with spreads that may be unequal.

    Args:
        known: spreads of all configurations that are compared.
        level: probability with which the bound holds.
        against: indices of the rivals that count; by default all.

    Example:
        >>> known = spreads([{0: 0.50, 1: 0.52}, {0: 0.51, 1: 0.53}], "min")
        >>> most_lost(known).leader
        0
    """
    leader = int(np.argmax(known.scores))
    rivals = {int(at) for at in np.flatnonzero(Comparisons(known).may_be_best)} - {leader}
    rivals = rivals if against is None else rivals & {*against}
    compared = Comparisons(known, level)
    ahead = max((known.scores[at] - known.scores[leader] + compared.reach(at, leader) for at in rivals), default=0.0)
    own, best = known.value(known.scores[leader]), known.value(known.scores[leader] + max(0.0, ahead))
    ratio = max(own, best) / min(own, best) if min(own, best) > 0 else None
    return Lost(leader, abs(own - best), ratio)

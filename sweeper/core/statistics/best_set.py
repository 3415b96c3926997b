"""Which configurations may be the best, and what the winner's value is worth. No I/O.

Who compares many configurations and names the one with the best mean of a few replicates makes two mistakes: others may
be as good, and the winner's mean is too good, because luck helped to choose it. `best_set` answers both.

The set is that of multiple comparisons with the best (Hsu 1984, Constrained simultaneous confidence intervals for
multiple comparisons with the best), for spreads that may be unequal (`spreads`). A configuration i is out where some
other j leads by more than luck explains. How far j has to lead follows from both spreads: by √(hᵢ² + hⱼ²), h the error
that a mean exceeds with probability a. The level a of one comparison is such that all comparisons of i together, which
share i's error, miss with a probability of 5 % where all true means are the same, the least favourable case; that is
counted over draws of all errors (a parametric bootstrap of the fitted spreads).

The winner's interval holds for whatever chose it. Its error is at most the largest of all that entered, trained to the
end or not, so that side is as wide as for the largest of so many: also where early stopping chose the survivors by the
same seeds' earlier values. It is an interval and no corrected value: such a value would need to know how rungs and last
epochs go together. Fresh seeds need neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sweeper.core.statistics.spreads import LEVEL, Floats, Spreads, spreads

#: How often the truly best configuration is in the set, as it is said. The set is computed at 95 %; where spreads are
#: very unequal it misses the best in up to 9 to 12 % (tests/benchmarks/STATISTICS.md).
SURE = "90 %"

#: A factor between the ends of an interval, beyond which it is not worth showing.
WIDEST = 10.0

#: Levels of one comparison that are tried.
_LEVELS = np.concatenate([np.linspace(0.5, 0.02, 49)[:-1], np.geomspace(0.02, 1e-8, 60)])

#: Draws of all errors: a probability of 5 % is then known to 0.35 %.
_DRAWS = 4000

#: Configurations above which the union bound decides instead of draws, of which there would be too many.
_MOST_DRAWN = 400

#: The most others that each is compared with: those with the best means, and those with the surest good means.
_RIVALS = 64


@dataclass(frozen=True)
class BestSet:
    """The configurations that may be the best, and the winner's value.

    Attributes:
        members: places of those in the set, best mean first: the winner, then those that cannot be told from it.
        configurations: how many were compared.
        entered: how many the winner was chosen from; more than `configurations` where others were stopped early.
        value: the winner's mean.
        interval: 95 % of the winner's true mean, of which the side that its choice favours is wider.
        paired: whether all share their seeds, and were compared seed by seed.
        replicates: the fewest of any configuration.
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
        """Whether the winner's interval says more than the size of its value."""
        low, high = self.interval
        return high - low <= abs(self.value) or 0 < high <= WIDEST * low


def best_set(
    values: Sequence[Mapping[int, float]],
    mode: str,
    level: float = LEVEL,
    relative: bool | None = None,
    entered: int | None = None,
) -> BestSet | None:
    """Return the configurations that cannot be told apart from the best; None where no spread can be estimated.

    Args:
        values: of each configuration seed → finite value.
        mode: `min` or `max`: which is better.
        level: the probability with which the best is in the set, and the winner's mean in its interval.
        relative: compare logarithms; by default where smaller is better and all means are positive.
        entered: how many the winner was chosen from, if more than have values.
    """
    places = [place for place, each in enumerate(values) if each]
    found = spreads([values[place] for place in places], mode, relative)
    if found is None:
        return None
    order = np.argsort(-found.scores, kind="stable")
    winner, total = int(order[0]), max(entered or 0, len(places))
    compared = Comparisons(found, level)
    return BestSet(
        tuple(places[at] for at in order if compared.may_be_best[at]),
        len(places),
        total,
        found.value(found.scores[winner]),
        found.interval(winner, level, total),
        found.paired,
        int(found.sizes.min()),
    )


def level_of(look: int) -> float:
    """Return the level of one of several looks at growing data, counted from 1; who is out at one stays out.

    Look k spends 5 % / (k (k + 1)) of error, so that all looks together miss with at most 5 % however many there are,
    and whoever asks for more seeds later may look again (a spending of error: Lan & DeMets 1983, Discrete sequential
    boundaries for clinical trials; by the union bound nothing is assumed of how looks depend on each other).
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
        """Return whether a configuration is worse than another, taken for one of the k − 1 that it is compared with."""
        gap = self.spreads.scores[other] - self.spreads.scores[at]
        reached = np.hypot(self._quantiles[at], self._quantiles[other]) <= gap
        share = _LEVELS[reached.sum() - 1] if reached.any() else 1.0
        return bool(share * max(1, len(self.spreads.scores) - 1) <= 1 - self.level)

    def reach(self, best: int, other: int) -> float:
        """Return by how much `other` may seem ahead of the truly best one while no configuration does by more."""
        miss, low, high = 1 - self.level, 0, len(_LEVELS) - 1
        if len(self.spreads.scores) > _MOST_DRAWN:
            low = high = int(np.searchsorted(-_LEVELS * (len(self.spreads.scores) - 1), -miss))
        while low < high:  # the largest level of one comparison at which all together miss rarely enough
            middle = (low + high) // 2
            low, high = (low, middle) if self._missed(best, _LEVELS[middle]) <= miss else (middle + 1, high)
        return float(np.hypot(self._quantiles[best, low], self._quantiles[other, low]))

    def _sharpest_levels(self) -> Floats:
        """Return for each configuration the smallest level at which another leads by more than luck explains, [k]."""
        scores, h = self.spreads.scores, self._quantiles
        sure = scores - h[:, np.searchsorted(-_LEVELS, -0.02)]
        rivals = np.unique(np.concatenate([np.argsort(-scores)[:_RIVALS], np.argsort(-sure)[:_RIVALS]]))
        found = np.ones(len(scores))
        for at in range(len(scores)):
            others = rivals[rivals != at]
            reached = np.hypot(h[at], h[others]) <= (scores[others] - scores[at])[:, None]
            count = int(reached.sum(axis=1).max(initial=0))
            if count:
                found[at] = _LEVELS[count - 1]
        return found

    def _missed(self, at: int, level: float) -> float:
        """Return how often, all true means being the same, another leads `at` by more than `level` allows."""
        h = self._quantiles[:, int(np.searchsorted(-_LEVELS, -level))]
        needed = np.hypot(h, h[at])
        needed[at] = np.inf
        return float(np.mean((self._errors - self._errors[:, [at]] > needed).any(axis=1)))

    @cached_property
    def _errors(self) -> Floats:
        """Draws of every mean's error, [draws, k]; the same ones in whatever order configurations are given."""
        found, rng = self.spreads, np.random.default_rng(0)
        drawn = np.empty((_DRAWS, len(found.scores)))
        for at in np.argsort(-found.scores, kind="stable"):
            cumulative = found.weights[at].cumsum()
            places = np.searchsorted(cumulative / cumulative[-1], rng.random(_DRAWS))
            drawn[:, at] = found.deviations[places] * rng.standard_normal(_DRAWS)
        return np.asarray(drawn / np.sqrt(found.sizes))


@dataclass(frozen=True)
class Lost:
    """The most that the leader can be worse than the best configuration.

    Attributes:
        leader: place of the best mean.
        value: on the objective's scale, at least 0; 0 where no other may be the best.
        ratio: the worse value over the better one, at least 1; None where one of them is not positive.
    """

    leader: int
    value: float
    ratio: float | None


def most_lost(found: Spreads, level: float = 0.9, against: Sequence[int] | None = None) -> Lost:
    """Return the most that the configuration with the best mean can be worse than the best of k configurations.

    With probability `level` all errors eᵢ keep within eᵢ − e_b ≤ w_b(i), b being the truly best one (`Comparisons`).
    So the leader is worse than b by at most score_b − score_leader + w_b(leader), whichever it is; b is unknown, and
    the largest of these over all that may be the best is an upper bound. Source: Hsu 1981, Simultaneous confidence
    intervals for all distances from the "best", Eq. (2.4), with spreads that may be unequal.

    Args:
        found: of all configurations that are compared.
        level: of the bound.
        against: places of the rivals that count; by default all.

    Example:
        >>> known = spreads([{0: 0.50, 1: 0.52}, {0: 0.51, 1: 0.53}], "min")
        >>> most_lost(known).leader
        0
    """
    leader = int(np.argmax(found.scores))
    rivals = {int(at) for at in np.flatnonzero(Comparisons(found).may_be_best)} - {leader}
    rivals = rivals if against is None else rivals & {*against}
    compared = Comparisons(found, level)
    ahead = max((found.scores[at] - found.scores[leader] + compared.reach(at, leader) for at in rivals), default=0.0)
    own, best = found.value(found.scores[leader]), found.value(found.scores[leader] + max(0.0, ahead))
    ratio = max(own, best) / min(own, best) if min(own, best) > 0 else None
    return Lost(leader, abs(own - best), ratio)

"""Which configurations cannot be told apart from the best, and what the best one's value is worth. No I/O.

Who compares many configurations and names the one with the best mean of a few replicates makes two mistakes: others may
be as good, and the winner's mean is too good, because luck helped to choose it. `best_set` answers both.

The set is that of multiple comparisons with the best (Hsu 1984, Constrained simultaneous confidence intervals for
multiple comparisons with the best): a configuration is out where another's mean is better by more than

    d · s · √(1/n_i + 1/n_j),

s the standard deviation of a replicate, pooled over configurations, and d Dunnett's one-sided factor for k − 1
comparisons. The truly best configuration is in the set with a probability of at least 95 %, whatever the means. The
scale, s and shared seeds are those of `pooled`.

The winner's value is corrected by choosing without each replicate in turn and measuring the chosen configuration on the
one left out: no replicate helps to choose what it measures. That estimates what choosing by one replicate fewer is
worth, which is never optimistic. A bootstrap over replicates, the usual correction, needs more of them than sweeps
have: resamples of two values vary half as much as the values.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sweeper.analysis.statistics.pooled import LEVEL, Pooled, pooled

_DEVIATIONS = 128  # quantiles of s/σ over which is averaged
_NORMAL = np.linspace(-8.0, 8.0, 161)  # points of a trapezoidal rule, which is exact to 1e-10 for normal integrands


@dataclass(frozen=True)
class BestSet:
    """The configurations that may be the best, and the winner's value.

    Attributes:
        members: places of those in the set, best mean first: the winner, then those that cannot be told from it.
        configurations: how many were compared.
        value: the winner's mean.
        corrected: the same, corrected for its having been chosen; None where no replicate can be left out.
        interval: 95 % of the winner's true mean, of which the side that its choice favours is wider.
        paired: whether all share their seeds, and were compared seed by seed.
    """

    members: tuple[int, ...]
    configurations: int
    value: float
    corrected: float | None
    interval: tuple[float, float]
    paired: bool


def best_set(
    values: Sequence[Mapping[int, float]], mode: str, level: float = LEVEL, relative: bool | None = None
) -> BestSet | None:
    """Return the configurations that cannot be told apart from the best; None where no spread can be estimated.

    Replicates are taken for normal, with one standard deviation for all configurations; see `pooled`.

    Args:
        values: of each configuration seed → finite value.
        mode: `min` or `max`: which is better.
        level: the probability with which the best is in the set, and the winner's mean in its interval.
        relative: compare logarithms; by default where smaller is better and all means are positive.
    """
    places = [place for place, each in enumerate(values) if each]
    layout = pooled([values[place] for place in places], mode, relative)
    if layout is None:
        return None
    order = np.argsort(-layout.scores, kind="stable")
    winner = int(order[0])
    members = tuple(places[at] for at in order if may_be_best(layout, int(at), level))
    tail = (1 - level) / 2
    corrected = _left_out(layout.sign * layout.table)
    return BestSet(
        members,
        len(places),
        layout.value(layout.scores[winner]),
        None if corrected is None else layout.sign * corrected,
        layout.around(
            winner,
            largest_of(len(places), layout.total_freedom, 1 - tail),
            largest_of(1, layout.total_freedom, 1 - tail),
        ),
        layout.paired,
    )


def may_be_best(layout: Pooled, at: int, level: float = LEVEL) -> bool:
    """Return whether a configuration cannot be told apart from the best of all."""
    best_of_sizes = (np.where(layout.sizes == size, layout.scores, -np.inf) for size in np.unique(layout.sizes))
    return not any(is_behind(layout, at, int(scores.argmax()), level) for scores in best_of_sizes)


def is_behind(layout: Pooled, at: int, other: int, level: float = LEVEL) -> bool:
    """Return whether a configuration is worse than another, taken for one of the k − 1 that it is compared with."""
    factor = with_the_best(len(layout.scores), layout.freedom, level) * layout.deviation
    gap = layout.scores[other] - layout.scores[at]
    return bool(gap > factor * math.sqrt(1 / layout.sizes[other] + 1 / layout.sizes[at]))


def _left_out(table: NDArray[np.float64]) -> float | None:
    """Return the mean, over replicates, of the value of what all others choose; None below two replicates."""
    found = []
    for at in range(table.shape[1]):
        others = np.delete(table, at, axis=1)
        usable = ~np.isnan(table[:, at]) & ~np.isnan(others).all(axis=1)
        if usable.any():
            chosen = int(np.argmax(np.nanmean(others[usable], axis=1)))
            found.append(table[usable, at][chosen])
    return float(np.mean(found)) if found else None


@functools.lru_cache(maxsize=64)
def with_the_best(configurations: int, freedom: float, level: float) -> float:
    """Return Dunnett's one-sided factor d of one mean against the k − 1 others, with s of `freedom` degrees of freedom.

    P(max_j (Z_j − Z_0)/√2 ≤ d·s/σ) = level; source: Dunnett 1955, A multiple comparison procedure for comparing several
    treatments with a control.
    """
    from scipy.special import ndtr

    density = np.exp(-(_NORMAL**2) / 2) / math.sqrt(2 * math.pi) * (_NORMAL[1] - _NORMAL[0])
    deviations = _deviations(freedom)

    def probability(factor: float) -> float:
        shifted = _NORMAL[None, :] + math.sqrt(2) * factor * deviations[:, None]
        return float((ndtr(shifted) ** (configurations - 1) @ density).mean())

    return _where(probability, level) if configurations > 1 else 0.0


@functools.lru_cache(maxsize=64)
def largest_of(count: int, freedom: float, level: float) -> float:
    """Return q with P(max of `count` independent Z ≤ q·s/σ) = level; of one, Student's quantile."""
    from scipy.special import ndtr, stdtrit

    if count == 1:
        return float(stdtrit(freedom, level))
    deviations = _deviations(freedom)
    return _where(lambda factor: float((ndtr(factor * deviations) ** count).mean()), level)


def _deviations(freedom: float) -> NDArray[np.float64]:
    """Return quantiles of s/σ for s² of `freedom` degrees of freedom, equally probable."""
    from scipy.special import gammaincinv

    shares = (np.arange(_DEVIATIONS) + 0.5) / _DEVIATIONS
    return np.asarray(np.sqrt(2 * gammaincinv(freedom / 2, shares) / freedom), dtype=np.float64)


def _where(probability: Callable[[float], float], level: float) -> float:
    """Return where a rising probability reaches `level`."""
    from scipy.optimize import brentq

    high = 4.0
    while probability(high) < level and high < 1e6:
        high *= 2
    return float(brentq(lambda factor: probability(factor) - level, 0.0, high, xtol=1e-9))

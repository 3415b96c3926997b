"""Seeds that ended far from the others of their configuration, for example in a bad optimum. No I/O.

Two or three seeds of one configuration cannot show that one of them diverged, since the configuration may spread that
widely. All trainings of a sweep together can. The typical spread σ is Qₙ, the lower quartile of the distances between
two seeds of one configuration (Rousseeuw & Croux 1993, Alternatives to the median absolute deviation, Eq. 2.2). It
barely changes while fewer than half of the values are outliers. A seed is an outlier if a gap of FAR σ separates it
from the better ones. Where bad optima are common, FAR_IF_OFTEN σ suffice. Elsewhere, a single value that far off may
belong to a noisy configuration, whose mean would be too good without its worst seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sweeper.core.statistics.spreads import Floats

#: Gap between an outlier and the better seeds, in typical spreads. With a gap of 8 throughout, the best of 8
#: configurations with log-normal spreads was missed in 17 % of sweeps with three seeds. With 16 it was missed in 10 %,
#: and without outliers in 9 % (120 draws).
FAR = 16.0

#: The gap if a share OFTEN of all trainings lies beyond it. When one seed in five was worse by 20 spreads, a gap of 16
#: throughout gave intervals that missed in 45 % of draws, since the bad seeds widen the typical spread (100 draws).
FAR_IF_OFTEN = 8.0
OFTEN = 0.1

#: If a larger share would be flagged, none is: the values then have one long tail and no typical spread.
MOST = 0.4

#: With fewer pairs of seeds none is flagged: the quartile of their distances is then too uncertain.
LEAST_PAIRS = 12

_PASSES = 2  # the second pass leaves out the seeds that the first one flagged
_NORMAL = 2.2219  # a normal value's standard deviation over the lower quartile of distances


@dataclass(frozen=True)
class Outliers:
    """Seeds that ended far from the others.

    Attributes:
        flagged: configuration and seed of each outlier.
        trainings: number of trainings examined.
    """

    flagged: tuple[tuple[str, int], ...]
    trainings: int

    def kept(self, values: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
        """Return the values without the outliers."""
        return {
            unit: {seed: value for seed, value in by_seed.items() if (unit, seed) not in self.flagged}
            for unit, by_seed in values.items()
        }


def outliers(values: Mapping[str, Mapping[int, float]], mode: str) -> Outliers:
    """Return the seeds that a gap of at least FAR spreads separates from better seeds of their configuration.

    Values are compared as logarithms if smaller is better and all are positive. The best seed of a configuration is
    never flagged, so a configuration whose seeds all diverged goes unnoticed.

    Args:
        values: seed → finite value, for each configuration.
        mode: `min` or `max`: which is better.

    Example:
        >>> seeds = {f"c{i}": {0: 0.10, 1: 0.11 + 0.001 * i, 2: 0.105} for i in range(8)}
        >>> outliers({**seeds, "c8": {0: 0.10, 1: 0.11, 2: 1.9}}, "min").flagged
        (('c8', 2),)
    """
    every = [value for by_seed in values.values() for value in by_seed.values()]
    relative = mode == "min" and min(every, default=0.0) > 0
    sign = 1.0 if mode == "min" else -1.0
    scores = {
        unit: {s: float(np.log(v)) if relative else sign * v for s, v in by.items()} for unit, by in values.items()
    }
    if sum(len(by_seed) * (len(by_seed) - 1) // 2 for by_seed in scores.values()) < LEAST_PAIRS:
        return Outliers((), len(every))
    flagged, spread = set[tuple[str, int]](), 0.0
    for _ in range(_PASSES):
        left = [[v for s, v in by_seed.items() if (unit, s) not in flagged] for unit, by_seed in scores.items()]
        distances = np.concatenate([_distances(np.array(row)) for row in left])
        spread = _NORMAL * float(np.quantile(distances, 0.25)) if distances.size else 0.0
        flagged = _beyond(scores, FAR_IF_OFTEN * spread)
    if not spread or len(flagged) > MOST * len(every):
        return Outliers((), len(every))
    if len(flagged) < OFTEN * len(every):
        flagged = _beyond(scores, FAR * spread)
    return Outliers(tuple((u, s) for u, by_seed in values.items() for s in by_seed if (u, s) in flagged), len(every))


def _beyond(scores: Mapping[str, Mapping[int, float]], far: float) -> set[tuple[str, int]]:
    """Return configuration and seed of all values beyond a gap."""
    return {(unit, seed) for unit, by_seed in scores.items() for seed in _beyond_gap(by_seed, far)}


def _distances(scores: Floats) -> Floats:
    """Return the distances between all pairs of values."""
    first, second = np.triu_indices(len(scores), 1)
    return np.asarray(np.abs(scores[first] - scores[second]))


def _beyond_gap(scores: Mapping[int, float], far: float) -> list[int]:
    """Return the seeds above the first gap wider than `far`.

    At most half of the seeds, rounded up, are outliers; a single lucky seed below the gap flags none.
    """
    order = sorted(scores, key=lambda seed: scores[seed])
    for at in range(len(order) // 2 or 1, len(order)):
        if scores[order[at]] - scores[order[at - 1]] > far:
            return order[at:]
    return []

"""Seeds that ended far from the others of their configuration, as a bad optimum does. No I/O.

In two or three seeds of one configuration nothing shows that one of them went astray: its spread may be that wide. All
trainings of a sweep together show it. The typical spread σ is Qₙ, the lower quartile of the distances between two seeds
of one configuration (Rousseeuw & Croux 1993, Alternatives to the median absolute deviation, Eq. 2.2), which outliers
that are fewer than half do not move far. A seed is far off where a gap of FAR σ lies between it and the better ones.
Where bad optima are common, FAR_IF_OFTEN σ suffice: a single value so far off may be a noisy configuration's, and
without its worst seed that one's mean would be too good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sweeper.core.statistics.spreads import Floats

#: Typical spreads between a seed and the better ones beyond which it is far off. At 8 for all, the best of 8 with
#: log-normal spreads was missed in 17 % of sweeps with three seeds; at 16 in 10 %, without outliers in 9 % (120 draws).
FAR = 16.0

#: The same where a share of OFTEN of all trainings is beyond it. With one seed in five worse by 20 spreads, 16 for all
#: left intervals that missed in 45 %, since the bad seeds widen the typical spread (100 draws).
FAR_IF_OFTEN = 8.0
OFTEN = 0.1

#: The share of flagged trainings above which none is: values then have one long tail and no typical spread.
MOST = 0.4

#: Pairs of seeds below which no seed is flagged.
LEAST_PAIRS = 12

_PASSES = 2  # the second without the seeds that the first one flagged
_NORMAL = 2.2219  # a normal value's standard deviation over the lower quartile of distances


@dataclass(frozen=True)
class Outliers:
    """Seeds that ended far from the others.

    Attributes:
        flagged: configuration and seed of each.
        trainings: how many were looked at.
    """

    flagged: tuple[tuple[str, int], ...]
    trainings: int

    def kept(self, values: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
        """Return the values of the seeds that trained."""
        return {
            unit: {seed: value for seed, value in by_seed.items() if (unit, seed) not in self.flagged}
            for unit, by_seed in values.items()
        }


def outliers(values: Mapping[str, Mapping[int, float]], mode: str) -> Outliers:
    """Return the seeds that are worse than better ones of their configuration by a gap of FAR spreads or more.

    Values are compared as logarithms where smaller is better and all are positive. The best seed of a configuration is
    never flagged, so one whose seeds all went astray is not seen.

    Args:
        values: of each configuration seed → finite value.
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
    """Return configuration and seed of all that are beyond a gap."""
    return {(unit, seed) for unit, by_seed in scores.items() for seed in _beyond_gap(by_seed, far)}


def _distances(scores: Floats) -> Floats:
    """Return the distances of all pairs of values."""
    first, second = np.triu_indices(len(scores), 1)
    return np.asarray(np.abs(scores[first] - scores[second]))


def _beyond_gap(scores: Mapping[int, float], far: float) -> list[int]:
    """Return the seeds above the first gap that is wider than `far`; none where one lucky seed is below it alone.

    At most half of the seeds, rounded up, count as astray.
    """
    order = sorted(scores, key=lambda seed: scores[seed])
    for at in range(len(order) // 2 or 1, len(order)):
        if scores[order[at]] - scores[order[at - 1]] > far:
            return order[at:]
    return []

"""Seeds that ended far from the others of their configuration, as a bad optimum does. No I/O.

In two or three seeds of one configuration nothing shows that one of them went astray: its spread may be that wide. All
trainings of a sweep together show it. The typical spread σ is Qₙ, the lower quartile of the distances between two seeds
of one configuration (Rousseeuw & Croux 1993, Alternatives to the median absolute deviation, Eq. 2.2), which outliers
that are fewer than half do not move far. A seed is far off where a gap of FAR σ lies between it and the better ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sweeper.analysis.statistics.spreads import Floats

#: Typical spreads between a seed and the better ones beyond which it is far off. Simulated with one seed in five worse
#: by 20 spreads, .76 to .98 of them are flagged (24 to 96 trainings), of clean normal values none, of values with heavy
#: tails (t₃) .3 %, of seeds whose spreads are log-normal 1 %. Of one very long tail (gamma, skewness 6), which is much
#: the same as a bad optimum in one seed of ten, 6 to 28 % (150 draws each).
FAR = 8.0

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
    """Return the seeds that are worse than better ones of their configuration by a gap of more than FAR spreads.

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
    flagged: set[tuple[str, int]] = set()
    if sum(len(by_seed) * (len(by_seed) - 1) // 2 for by_seed in scores.values()) < LEAST_PAIRS:
        return Outliers((), len(every))
    for _ in range(_PASSES):
        left = [[v for s, v in by_seed.items() if (unit, s) not in flagged] for unit, by_seed in scores.items()]
        distances = np.concatenate([_distances(np.array(row)) for row in left])
        far = FAR * _NORMAL * float(np.quantile(distances, 0.25)) if distances.size else 0.0
        flagged = {(unit, seed) for unit, by_seed in scores.items() for seed in _beyond_gap(by_seed, far)}
    if not far or len(flagged) > MOST * len(every):
        return Outliers((), len(every))
    return Outliers(
        tuple(key for key in ((u, s) for u, by in values.items() for s in by) if key in flagged), len(every)
    )


def _distances(scores: Floats) -> Floats:
    """Return the distances of all pairs of values."""
    first, second = np.triu_indices(len(scores), 1)
    return np.asarray(np.abs(scores[first] - scores[second]))


def _beyond_gap(scores: Mapping[int, float], far: float) -> list[int]:
    """Return the seeds above the first gap that is wider than `far`."""
    order = sorted(scores, key=lambda seed: scores[seed])
    cut = next((at for at in range(1, len(order)) if scores[order[at]] - scores[order[at - 1]] > far), len(order))
    return order[cut:]

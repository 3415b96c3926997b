"""Seeds that ended far from the other seeds of their candidate, for example in a bad optimum. No I/O.

Two or three seeds cannot show by themselves that one of them diverged: the candidate may spread that widely. Spreads
differ up to fifteenfold between losses (label smoothing beside cross-entropy), so one typical spread for all candidates
would flag the healthy seeds of the noisy ones. A seed is an outlier only if both comparisons say so:

- The gap to the next better seed is wide for the sweep: more than `FAR` typical spreads. The typical spread is Qₙ, the
  lower quartile of the distances between two seeds of one candidate (Rousseeuw & Croux 1993, Alternatives to the median
  absolute deviation, Eq. 2.2). Outliers hardly change it.
- The gap is wide for the candidates that have such gaps. Their better seeds give a spread of their own, and the gap a
  p-value on Student's scale. Noisy candidates have wide distances between their better seeds too; candidates with a
  diverged seed do not.

A gap of more than `OUTRIGHT` typical spreads is beyond even a candidate that spreads fifteen times as much. So is a
loss of more than `TIMES` that of the next better seed, however much the candidate spreads.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: A gap of fewer typical spreads is never an outlier.
FAR = 8.0

#: A wider gap, in typical spreads, is an outlier without further evidence: fifteen spreads times five deviations.
OUTRIGHT = 80.0

#: A loss that is so many times the next better seed's is no chance: logarithms of losses of seeds that train spread by
#: less than one.
TIMES = 30.0

#: Largest p of an outlier, times the number of candidates with a wide gap. Healthy seeds were flagged in at most 1 % of
#: simulated sweeps with spreads up to 15 : 1 (tests/benchmarks/STATISTICS.md).
SURE = 0.004

#: If a larger share would be flagged, none is: the values then have one long tail and no typical spread.
MOST = 0.4

#: With fewer pairs of seeds none is flagged: the quartile of their distances is then too uncertain.
LEAST_PAIRS = 12

#: Number of seeds that a candidate keeps: two have a spread.
KEPT = 2

_NORMAL = 2.2219  # a normal value's standard deviation over the lower quartile of distances


@dataclass(frozen=True)
class Outliers:
    """Seeds that ended far from the others.

    Attributes:
        flagged: candidate and seed of each outlier.
        trainings: number of trainings examined.
    """

    flagged: tuple[tuple[str, Hashable], ...]
    trainings: int

    def kept(self, values: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, float]]:
        """Return the values without the outliers."""
        return {
            name: {seed: value for seed, value in by_seed.items() if (name, seed) not in self.flagged}
            for name, by_seed in values.items()
        }


@dataclass(frozen=True)
class _Gap:
    """The first wide gap above the better seeds of a candidate.

    Attributes:
        candidate: its name.
        beyond: seeds beyond the gap.
        width: size of the gap.
        squares: sum of squares of the better seeds about their mean.
        freedom: its degrees of freedom.
    """

    candidate: str
    beyond: tuple[Hashable, ...]
    width: float
    squares: float
    freedom: int

    def p(self, spread: float, freedom: int) -> float:
        """Return the probability that one of the seeds is so far from the better ones, given their spread."""
        from scipy.special import stdtr  # scipy.stats takes half a second to import

        better = self.freedom + 1
        reach = self.width / max(spread, 1e-12 * self.width) / math.sqrt(1 + 1 / better)
        return (better + len(self.beyond)) * float(stdtr(freedom, -reach))


def outliers(values: Mapping[str, Mapping[int, float]], mode: str) -> Outliers:
    """Return the seeds that ended far from better seeds of their candidate.

    Values are compared as logarithms if smaller is better and all are positive. At least two seeds of a candidate, and
    its better half, are never flagged.

    Args:
        values: seed → finite value, for each candidate.
        mode: `min` or `max`: which is better.

    Example:
        >>> seeds = {f"c{i}": {0: 0.10, 1: 0.11 + 0.001 * i, 2: 0.105} for i in range(8)}
        >>> outliers({**seeds, "c8": {0: 0.10, 1: 0.11, 2: 1.9, 3: 0.104, 4: 0.106}}, "min").flagged
        (('c8', 2),)
    """
    every = [value for by_seed in values.values() for value in by_seed.values()]
    ratios = mode == "min" and min(every, default=0.0) > 0
    scores = {name: _scores(by_seed, mode, ratios=ratios) for name, by_seed in values.items() if by_seed}
    distances = np.concatenate([np.empty(0), *(_distances(np.array([*row.values()])) for row in scores.values())])
    if len(distances) < LEAST_PAIRS:
        return Outliers((), len(every))
    spread = _NORMAL * float(np.quantile(distances, 0.25))
    gaps = [gap for name, row in scores.items() if spread and (gap := _widest(name, row, FAR * spread)) is not None]
    own = math.sqrt(sum(gap.squares for gap in gaps) / max(1, sum(gap.freedom for gap in gaps)))
    freedom = sum(gap.freedom for gap in gaps)
    outright = min(OUTRIGHT * spread, math.log(TIMES)) if ratios else OUTRIGHT * spread
    gaps = [gap for gap in gaps if gap.width > outright or len(gaps) * gap.p(own, freedom) < SURE]
    flagged = {(gap.candidate, seed) for gap in gaps for seed in gap.beyond}
    if len(flagged) > MOST * len(every):
        return Outliers((), len(every))
    return Outliers(tuple((n, s) for n, by_seed in values.items() for s in by_seed if (n, s) in flagged), len(every))


def _scores(by_seed: Mapping[int, float], mode: str, *, ratios: bool) -> dict[int, float]:
    """Return the values on a scale where smaller is better; as logarithms to compare ratios."""
    if ratios:
        return {seed: float(np.log(value)) for seed, value in by_seed.items()}
    return {seed: value if mode == "min" else -value for seed, value in by_seed.items()}


def _distances(scores: Floats) -> Floats:
    """Return the distances between all pairs of values."""
    first, second = np.triu_indices(len(scores), 1)
    return np.asarray(np.abs(scores[first] - scores[second]))


def _widest(name: str, scores: Mapping[int, float], far: float) -> _Gap | None:
    """Return the first gap wider than `far` above the better half of the seeds."""
    order = sorted(scores, key=lambda seed: scores[seed])
    for at in range(max(KEPT, len(order) // 2), len(order)):
        width = scores[order[at]] - scores[order[at - 1]]
        if width > far:
            better = np.array([scores[seed] for seed in order[:at]])
            return _Gap(name, tuple(order[at:]), width, float(((better - better.mean()) ** 2).sum()), at - 1)
    return None

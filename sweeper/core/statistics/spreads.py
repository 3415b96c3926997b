"""The spread of each configuration's replicates, where configurations may spread unequally. No I/O.

Two or three replicates say little about their own spread: Student's t for two has one degree of freedom, and an
interval twelve standard errors wide. Replicates of all configurations together say more. But a residual network may
spread five times as much as a perceptron; then a common spread makes the noisy networks' intervals too narrow. So each
configuration has its own standard deviation σᵢ, and the distribution of the σᵢ is estimated from all of them (moderated
variances: Smyth 2004, Linear models and empirical Bayes methods for assessing differential expression, §3):

    log σᵢ = m + τ t,   t ~ Student's t,   sᵢ² | σᵢ ~ σᵢ² χ²(dᵢ) / dᵢ.

Smyth's prior is an inverse χ² fitted to the moments of log sᵢ². With few configurations that fit often finds no
variation at all, and then treats the one noisy configuration as quiet. In simulations with two replicates, the best
configuration spread six times as much as the others, and was missed in 10 to 15 % of sweeps instead of 5 %. Two changes
correct that (`make bench-statistics`): m and τ are integrated over instead of fitted, and the prior has Student's
tails. The noisiest of many configurations is more extreme, so the tails depend on the number of configurations: 4
degrees of freedom up to MANY configurations, 1 (Cauchy) and wider τ above.

Losses and calibration errors spread in proportion to their size, so they are compared as logarithms. These are
linearised at each configuration's mean (the delta method), which keeps the order of the means. Accuracies are compared
as they are. If all configurations share their seeds, the seeds' effects are removed from differences (two-way layout).

A seed can also end far from the others of its configuration, for example in a bad optimum. Two or three seeds of one
configuration cannot show that one of them diverged, since the configuration may spread that widely. All trainings of a
sweep together can. The typical spread σ is Qₙ, the lower quartile of the distances between two seeds of one
configuration (Rousseeuw & Croux 1993, Alternatives to the median absolute deviation, Eq. 2.2). It barely changes while
fewer than half of the values are outliers. A seed is an outlier if a gap of FAR σ separates it from the better ones.
Where bad optima are common, FAR_IF_OFTEN σ suffice. Elsewhere, a single value that far off may belong to a noisy
configuration, whose mean would be too good without its worst seed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Seed = TypeVar("Seed", bound=Hashable)

LEVEL = 0.95

#: With more configurations than this, the prior has Cauchy's tails. With t₄ tails, the best of 48 with log-normal
#: spreads is missed in 15 % of sweeps; with Cauchy's for few configurations, two replicates decide almost nothing.
MANY = 24


@dataclass(frozen=True)
class Prior:
    """How log σ varies between configurations.

    Attributes:
        freedom: degrees of freedom of Student's t.
        variations: values of τ, equally probable a priori.
    """

    freedom: int
    variations: tuple[float, ...]

    @classmethod
    def of(cls, configurations: int) -> Prior:
        """Return the prior for this number of configurations with a spread."""
        return (
            cls(4, (0.15, 0.3, 0.5, 0.75, 1.0, 1.4))
            if configurations <= MANY
            else cls(1, (0.3, 0.5, 0.75, 1.0, 1.4, 2.0))
        )


_GRID = 90  # points of log σ; a finer grid changes no quantile by 1 %
_BELOW, _ABOVE = 2.5, 3.0  # how far the grid of log σ extends beyond the observed standard deviations
_WIDEST = 14.0  # extent of the grid: ties can make one standard deviation tiny compared with the others
_QUANTILES = 260  # points at which tails are tabulated
_SEEDS = 48  # points of the seeds' own log σ


@dataclass(frozen=True)
class Spreads:
    """Replicates of k configurations, and the error of each mean.

    Attributes:
        scores: means on the scale of comparison, larger is better, [k].
        sizes: number of replicates of each configuration, [k].
        deviations: grid of σ, [g].
        weights: probability of each σ for each configuration, [k, g].
        seeds: values of the seed effects' standard deviation and their probabilities; None unless seeds are shared.
        relative: whether the scale is logarithmic.
        sign: −1 if smaller values are better, else 1.
    """

    scores: Floats
    sizes: Floats
    deviations: Floats
    weights: Floats
    seeds: tuple[Floats, Floats] | None
    relative: bool
    sign: float

    @property
    def paired(self) -> bool:
        """Whether all configurations share their seeds."""
        return self.seeds is not None

    def part(self, at: Sequence[int]) -> Spreads:
        """Return the spreads of some configurations, as estimated from all of them."""
        return replace(self, scores=self.scores[at], sizes=self.sizes[at], weights=self.weights[at])

    def value(self, score: float) -> float:
        """Convert a score back to a value."""
        return math.exp(self.sign * score) if self.relative else float(self.sign * score)

    def interval(self, at: int, level: float = LEVEL, chosen_from: int = 1) -> tuple[float, float]:
        """Return the interval of configuration `at`'s true mean.

        On average over configurations it covers with probability `level`. The interval of a configuration that spreads
        far more than the others covers less often. With `chosen_from`, configuration `at` was selected for its mean
        among that many. Then the side that the selection favours is as wide as for the largest of so many errors, so
        the interval covers however the selection was made.
        """
        tail = (1 - level) / 2
        worse, better = (self.total.quantile(at, share) for share in (tail / chosen_from, tail))
        ends = (self.value(self.scores[at] - worse), self.value(self.scores[at] + better))
        return min(ends), max(ends)

    @cached_property
    def alone(self) -> Tails:
        """Tails of the errors that count in differences: without the seeds' effects, which all configurations share."""
        return Tails.of(self, (np.zeros(1), np.ones(1)))

    @cached_property
    def total(self) -> Tails:
        """Tails of the errors of single means."""
        return self.alone if self.seeds is None else Tails.of(self, self.seeds)


@dataclass(frozen=True)
class Tails:
    """Probabilities that a configuration's mean is too large by more than x.

    Attributes:
        x: errors of one replicate, [q].
        above: probability of a larger error, [k, q].
        roots: √n of each configuration, [k].
    """

    x: Floats
    above: Floats
    roots: Floats

    @classmethod
    def of(cls, known: Spreads, seeds: tuple[Floats, Floats]) -> Tails:
        """Return the tails of normal errors with an uncertain standard deviation; that of `seeds` is added to it."""
        from scipy.special import ndtr

        widest = math.hypot(float(known.deviations[-1]), float(seeds[0][-1]))
        x = np.concatenate([[0.0], np.geomspace(known.deviations[0] / 20, 12 * widest, _QUANTILES)])
        above = sum(
            share * (known.weights @ ndtr(-x[:, None] / np.hypot(known.deviations, other)[None, :]).T)
            for other, share in zip(*seeds, strict=True)
        )
        return cls(x, np.asarray(above), np.sqrt(known.sizes))

    def quantile(self, at: int, share: float) -> float:
        """Return the error that configuration `at`'s mean exceeds with probability `share`, at most one half."""
        return float(np.interp(-share, -self.above[at], self.x) / self.roots[at])

    def quantiles(self, shares: Floats) -> Floats:
        """Return `quantile` for every configuration and each of `shares`, [k, shares]."""
        errors = np.stack([np.interp(-shares, -above, self.x) for above in self.above])
        return np.asarray(errors / self.roots[:, None])


def spreads(values: Sequence[Mapping[Seed, float]], mode: str, relative: bool | None = None) -> Spreads | None:
    """Estimate the spreads of replicates; None if no configuration has two, or if all values are equal.

    Configurations with the same values on the same seeds count as one training in the estimate.

    Args:
        values: seed → finite value for each configuration, at least one.
        mode: `min` or `max`: which is better.
        relative: compare logarithms; by default if smaller is better and all means are positive.

    Example:
        >>> spreads([{0: 0.50, 1: 0.52}, {0: 0.51, 1: 0.53}], "min").paired
        True
    """
    first: dict[frozenset[tuple[Seed, float]], int] = {}
    at = [first.setdefault(frozenset(by_seed.items()), len(first)) for by_seed in values]
    places = [int(place) for place in np.unique(at, return_index=True)[1]]
    known = _spreads_of_distinct([values[place] for place in places], mode, relative)
    return None if known is None else known.part(at)


def _spreads_of_distinct(values: Sequence[Mapping[Seed, float]], mode: str, relative: bool | None) -> Spreads | None:
    if not values:
        return None
    means = [float(np.mean([*by_seed.values()])) for by_seed in values]
    sign = -1.0 if mode == "min" else 1.0
    logarithms = (mode == "min" and min(means) > 0) if relative is None else relative
    common = [seed for seed in values[0] if all(seed in by_seed for by_seed in values)]
    paired = len(common) >= 2 and len(values) >= 2
    table = np.full((len(values), len(common) if paired else max(map(len, values))), np.nan)
    for row, by_seed in zip(table, values, strict=True):
        replicates = [by_seed[seed] for seed in common] if paired else [*by_seed.values()]
        row[: len(replicates)] = replicates
    sizes = np.sum(~np.isnan(table), axis=1).astype(np.float64)
    step = _resolution(table)
    if sizes.max() < 2 or step is None:
        return None
    scores = _scores(table, sign, logarithms)
    centres = np.nanmean(scores, axis=1)
    unit = step / np.abs(np.nanmean(table, axis=1)) if logarithms else np.full(len(table), step)
    residuals = scores - centres[:, None]
    effects, squares, freedom = (
        _without_seeds(residuals) if paired else (None, np.nansum(residuals**2, axis=1), sizes - 1)
    )
    rounding = unit**2 / 12  # rounding to `unit` adds at least this to s² (Sheppard 1898)
    grid, weights = _posterior(squares / np.maximum(freedom, 1e-9) + rounding, freedom)
    seeds = None if effects is None else _seed_deviation(effects, grid, weights)
    return Spreads(centres, sizes, grid, weights, seeds, logarithms, sign)


def _scores(table: Floats, sign: float, relative: bool) -> Floats:
    """Convert values [k, r] to the scale of comparison, on which the mean of a row is the score of its mean."""
    if not relative:
        return sign * table
    means = np.nanmean(table, axis=1, keepdims=True)
    return np.asarray(sign * (np.log(means) + table / means - 1))


def _resolution(table: Floats) -> float | None:
    """Return the smallest difference between two values, which bounds their precision; None if all are equal.

    Accuracies over 360 samples are multiples of 1/360: two equal ones do not show a spread of zero.
    """
    gaps = np.diff(np.unique(table[~np.isnan(table)]))
    return float(gaps.min()) if gaps.size else None


def _posterior(squares: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """Return a grid of σ [g] and each configuration's probabilities on it [k, g]."""
    seen = 0.5 * np.log(squares[freedom > 0])
    high = seen.max() + _ABOVE
    logs = np.linspace(max(seen.min() - _BELOW, high - _WIDEST), high, _GRID)
    likelihood = -freedom[:, None] * (logs + squares[:, None] / 2 * np.exp(-2 * logs))
    likelihood = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))  # scaled: it underflows for many seeds
    centres, prior = logs[::2], Prior.of(len(seen))
    evidence, posteriors = [], []
    for variation in prior.variations:
        t = (logs - centres[:, None]) / variation
        density = (1 + t**2 / prior.freedom) ** (-(prior.freedom + 1) / 2)
        density /= density.sum(axis=1, keepdims=True)
        marginal = likelihood @ density.T  # [k, centres]
        joint = np.log(marginal).sum(axis=0)
        share = np.exp(joint - joint.max())
        evidence.append(float(joint.max() + np.log(share.sum())))
        posteriors.append(likelihood * ((share / share.sum() / marginal) @ density))
    shares = np.exp(np.array(evidence) - max(evidence))
    weights = np.tensordot(shares / shares.sum(), np.array(posteriors), axes=1)
    return np.exp(logs), weights / weights.sum(axis=1, keepdims=True)


def _without_seeds(residuals: Floats) -> tuple[Floats, Floats, Floats]:
    """Return seeds' effects [r], and each configuration's squares about them with their degrees of freedom.

    Effects are means over configurations, weighted by precision; otherwise a noisy one would pass its noise on to all.
    A configuration of weight h loses the share h of its degrees of freedom to the effects that it helped to estimate.
    """
    k, r = residuals.shape
    shares = np.full(k, 1 / k)
    for _ in range(5):  # the weights settle within two rounds; they only need to be near
        effects = shares @ residuals
        squares = ((residuals - effects) ** 2).sum(axis=1)
        freedom = (r - 1) * (1 - shares)
        typical = float(np.median(squares / freedom)) or 1.0
        precision = 1 / (squares / freedom + typical)  # moderated, since the variance of two values says little
        shares = np.minimum(precision / precision.sum(), 0.5)
        shares /= shares.sum()
    effects = shares @ residuals
    return effects, ((residuals - effects) ** 2).sum(axis=1), (r - 1) * (1 - shares)


def _seed_deviation(effects: Floats, grid: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return values of the seed effects' standard deviation and their probabilities.

    The prior is log-uniform from a thirtieth of a replicate's error upwards; it matters, since two seeds give one
    degree of freedom.
    """
    typical = float(np.exp(np.median(weights @ np.log(grid))))
    square, freedom = float((effects**2).sum()) / (len(effects) - 1), len(effects) - 1
    high = max(math.sqrt(square), typical)
    values = np.geomspace(typical / 30, 60 * high, _SEEDS)
    variance = values**2 + typical**2 / len(weights)
    shares = -freedom / 2 * (np.log(variance) + square / variance)
    shares = np.exp(shares - shares.max())
    return values, np.asarray(shares / shares.sum())


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

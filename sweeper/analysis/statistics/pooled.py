"""The chance of seeds, from the spread of replicates pooled over configurations. No I/O.

Two or three replicates say little about their own spread: Student's t of two has one degree of freedom, and an interval
twelve standard errors wide. Replicates of all configurations together have many. That configurations share one spread
is the assumption of an analysis of variance (Fisher 1925, Statistical Methods for Research Workers, §36). Losses and
calibration errors spread in proportion to their size, so these are compared as logarithms, each linearised at its
configuration's mean (the delta method), so that configurations keep the order of their means; accuracies as they are.

Where all configurations share their seeds, the seeds' luck is taken out of differences (two-way layout).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95


@dataclass(frozen=True)
class Pooled:
    """Replicates of k configurations, and how far one of them lies from its configuration's mean.

    Attributes:
        table: values [k, r], NaN where one is missing.
        scores: means on the scale on which configurations are compared, larger being better, [k].
        sizes: replicates of each configuration, [k].
        deviation: standard deviation of a replicate in a difference of two configurations, on that scale.
        freedom: degrees of freedom behind it.
        total_deviation: the same of a single value; it differs where seeds are shared.
        total_freedom: degrees of freedom behind that.
        paired: whether all configurations share their seeds.
        relative: whether the scale is the logarithm.
        sign: −1 where smaller values are better, else 1.
    """

    table: NDArray[np.float64]
    scores: NDArray[np.float64]
    sizes: NDArray[np.int64]
    deviation: float
    freedom: float
    total_deviation: float
    total_freedom: float
    paired: bool
    relative: bool
    sign: float

    def value(self, score: float) -> float:
        """Return the value that has a score."""
        return math.exp(self.sign * score) if self.relative else float(self.sign * score)

    def around(self, at: int, down: float, up: float) -> tuple[float, float]:
        """Return the values that are `down` standard errors of configuration `at` worse and `up` better, in order."""
        error = self.total_deviation / math.sqrt(self.sizes[at])
        ends = (self.value(self.scores[at] - down * error), self.value(self.scores[at] + up * error))
        return min(ends), max(ends)

    def interval(self, at: int, level: float = LEVEL) -> tuple[float, float]:
        """Return Student's interval of the mean of configuration `at`."""
        from scipy.special import stdtrit

        quantile = float(stdtrit(self.total_freedom, (1 + level) / 2))
        return self.around(at, quantile, quantile)


def pooled(values: Sequence[Mapping[int, float]], mode: str, relative: bool | None = None) -> Pooled | None:
    """Return the spread of replicates pooled over configurations; None where none has two replicates.

    Args:
        values: of each configuration seed → finite value, at least one.
        mode: `min` or `max`: which is better.
        relative: compare logarithms; by default where smaller is better and all means are positive.
    """
    if not values:
        return None
    means = [float(np.mean([*each.values()])) for each in values]
    sign = -1.0 if mode == "min" else 1.0
    logarithms = (mode == "min" and min(means) > 0) if relative is None else relative
    common = [seed for seed in values[0] if all(seed in each for each in values)]
    if len(common) >= 2 and len(values) >= 2:
        table = np.array([[each[seed] for seed in common] for each in values], dtype=np.float64)
        scores = _scores(table, sign, logarithms)
        return Pooled(
            table, scores.mean(axis=1), np.full(len(table), len(common)), *_two_way(scores), True, logarithms, sign
        )
    table = np.full((len(values), max(map(len, values))), np.nan)
    for row, each in zip(table, values, strict=True):
        row[: len(each)] = list(each.values())
    sizes = np.array([len(each) for each in values])
    freedom = int((sizes - 1).sum())
    if not freedom:
        return None
    scores = _scores(table, sign, logarithms)
    of_each = np.nanmean(scores, axis=1)
    deviation = math.sqrt(float(np.nansum((scores - of_each[:, None]) ** 2)) / freedom)
    return Pooled(table, of_each, sizes, deviation, freedom, deviation, freedom, False, logarithms, sign)


def _scores(table: NDArray[np.float64], sign: float, relative: bool) -> NDArray[np.float64]:
    """Return values [k, r] on the scale of comparison; the mean of a row is that of its mean."""
    if not relative:
        return sign * table
    means = np.nanmean(table, axis=1, keepdims=True)
    return np.asarray(sign * (np.log(means) + table / means - 1))


def _two_way(scores: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Return deviations and degrees of freedom of k configurations on the same r seeds: effects of both, and residuals.

    A single value varies by seeds and residuals, (MS_seeds + (k − 1)·MS_residuals)/k, with Satterthwaite's degrees of
    freedom (Satterthwaite 1946).
    """
    k, r = scores.shape
    means, seeds = scores.mean(axis=1), scores.mean(axis=0)
    residual = scores - means[:, None] - seeds[None, :] + scores.mean()
    freedom = (k - 1) * (r - 1)
    of_residuals = float((residual**2).sum()) / freedom
    of_seeds = k * float(((seeds - seeds.mean()) ** 2).sum()) / (r - 1)
    both = of_seeds + (k - 1) * of_residuals
    spread = of_seeds**2 / (r - 1) + ((k - 1) * of_residuals) ** 2 / freedom
    total_freedom = both**2 / spread if spread > 0 else float(freedom)
    return math.sqrt(of_residuals), freedom, math.sqrt(both / k), total_freedom

"""Reliability diagrams without bins (CORP): isotonic curves, their bands, and a decomposition of the Brier score.

The curve is the isotonic regression of the outcomes on the confidence. It is calibrated, and no other non-decreasing
function of the confidence has a smaller Brier score (Dimitriadis, Gneiting & Jordan 2021, Stable reliability diagrams
for probabilistic classifiers, PNAS 118). With S the Brier score of the confidence, S_C that of the curve and S_R that
of the plain frequency,

    S = MCB − DSC + UNC,   MCB = S − S_C,   DSC = S_R − S_C,   UNC = S_R:

miscalibration, discrimination and uncertainty, the first two never negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers

#: Level and number of resamples of the band, as in the figures of Dimitriadis et al. 2021.
BAND_LEVEL = 0.9
REPETITIONS = 100

#: Points of a band's curve: more would not be visible in a figure.
BAND_POINTS = 60

#: Scores that differ by less than this share of themselves are equal.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Decomposition:
    """The parts of the Brier score of a confidence: `score` = `miscalibration` − `discrimination` + `uncertainty`."""

    score: float
    miscalibration: float
    discrimination: float
    uncertainty: float


@dataclass(frozen=True)
class Band:
    """Frequencies between which the curve of a calibrated confidence lies, point by point.

    Attributes:
        confidence: confidences, ascending [M].
        lower, upper: bounds of the frequency there [M].
    """

    confidence: Floats
    lower: Floats
    upper: Floats


def isotonic_levels(score: Floats, outcome: ArrayLike) -> tuple[Floats, Floats]:
    """Return the points where the isotonic regression of `outcome` [N] on `score` [N] bends.

    Equal scores are one point. Points between two with the same value are left out.

    Returns:
        scores, ascending, and the fitted values.

    Example:
        >>> scores, levels = isotonic_levels(np.array([0.1, 0.4, 0.6, 0.9]), [0.0, 1.0, 0.0, 1.0])
        >>> scores.tolist(), levels.tolist()
        ([0.1, 0.4, 0.6, 0.9], [0.0, 0.5, 0.5, 1.0])
    """
    order = np.argsort(score, kind="stable")
    ascending, starts, counts = _grouped(score[order])
    fitted = _fitted(np.asarray(outcome, dtype=np.float64)[order], starts, counts)
    bends = np.ones(len(fitted), dtype=bool)
    bends[1:-1] = (fitted[1:-1] != fitted[:-2]) | (fitted[1:-1] != fitted[2:])
    return ascending[bends], fitted[bends]


def interpolated(at: Floats, scores: Floats, levels: Floats) -> Floats:
    """Return the line through the points (`scores`, `levels`) [M], ascending, at `at` [N]; constant beyond the ends.

    Example:
        >>> tiny = np.array([0.0, 2e-310])
        >>> interpolated(tiny / 2, tiny, np.array([0.0, 1.0])).round(6).tolist()
        [0.0, 0.5]
    """
    values = np.asarray(np.interp(at, scores, levels))
    # numpy multiplies by a slope, which overflows between scores that are closer than about 1e-308
    lost = ~np.isfinite(values)
    if lost.any():
        right = np.searchsorted(scores, at[lost])
        left = right - 1
        share = (at[lost] - scores[left]) / (scores[right] - scores[left])
        values[lost] = levels[left] + share * (levels[right] - levels[left])
    return values


def decomposition(confidence: Floats, outcome: Floats) -> Decomposition:
    """Return the Brier score of a confidence [N] against outcomes [N], 0 or 1, and its parts.

    Example:
        >>> decomposition(np.array([0.25, 0.25, 0.75, 0.75]), np.array([0.0, 0.0, 1.0, 1.0]))
        Decomposition(score=0.0625, miscalibration=0.0625, discrimination=0.25, uncertainty=0.25)
    """
    recalibrated = interpolated(confidence, *isotonic_levels(confidence, outcome))
    score = float(((confidence - outcome) ** 2).mean())
    best = float(((recalibrated - outcome) ** 2).mean())
    plain = float(((outcome.mean() - outcome) ** 2).mean())
    return Decomposition(score, score - best, plain - best, plain)


def consistency_band(
    confidence: Floats,
    same: Integers | None = None,
    level: float = BAND_LEVEL,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Band:
    """Return the band that contains the curve of a calibrated confidence, at each confidence with probability `level`.

    Outcomes are drawn with the confidences [N] as probabilities, and the curve of each draw is computed. The band lies
    between percentiles of these curves. Samples with the same number in `same` [N] (one image for several networks)
    share their random number, so the outcomes of the networks are correlated, as in reality.
    """
    order = np.argsort(confidence, kind="stable")
    ascending, starts, counts = _grouped(confidence[order])
    drawn_for = np.arange(len(order)) if same is None else np.unique(same, return_inverse=True)[1]
    drawn_for, right_below = drawn_for[order], confidence[order]
    at = np.quantile(confidence, np.linspace(0, 1, BAND_POINTS), method="nearest")
    at = np.unique(at)
    rng = np.random.default_rng(seed)
    curves = np.empty((repetitions, len(at)))
    for curve in curves:
        outcome = rng.random(int(drawn_for.max()) + 1)[drawn_for] < right_below
        curve[:] = np.interp(at, ascending, _fitted(outcome.astype(np.float64), starts, counts))
    lower, upper = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Band(at, lower, upper)


def consistency_bars(confidence: ArrayLike, samples: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Return the ends of each bin's bar, between which its accuracy lies with probability `level` if it is calibrated.

    These are quantiles of Binomial(n, p)/n, with n the `samples` [B] of a bin, at least 1, and p its mean `confidence`
    [B]. The bars of Bröcker & Smith 2007, Increasing the reliability of reliability diagrams, Weather and Forecasting
    22, are resampled; if confidences within a bin differ, theirs are slightly narrower.

    Example:
        >>> low, high = consistency_bars([0.5], [100])
        >>> low.tolist(), high.tolist()
        ([0.4], [0.6])
    """
    n = np.maximum(np.floor(samples), 1)
    low, high = (_binomial_quantile((1 + side * level) / 2, n, np.minimum(confidence, 1.0)) / n for side in (-1, 1))
    return low, high


def _binomial_quantile(q: float, n: Floats, p: Floats) -> Floats:
    """Return the smallest k [B] with a probability of at least `q` that Binomial(n, p) is at most k."""
    from scipy.special import bdtr, bdtrik  # `scipy.stats.binom` takes a second to import

    k = bdtrik(q, n, p)
    k = np.ceil(np.where(np.isnan(k), np.round(p) * n, k))  # not a number where p is next to 0 or 1
    below = np.maximum(k - 1, 0)
    return np.where(bdtr(below, n, p) >= q, below, k)


def _grouped(ascending: Floats) -> tuple[Floats, Integers, Floats]:
    """Return the distinct values of an ascending array, their first indices, and their counts."""
    # Equal shares of a forest's trees differ by rounding after a softmax of their logarithms. They are still ties.
    apart = np.diff(ascending) > ROUNDING * np.abs(ascending[1:])
    starts = np.flatnonzero(np.concatenate(([True], apart)))
    return ascending[starts], starts, np.diff(starts, append=len(ascending)).astype(np.float64)


def _fitted(outcome: Floats, starts: Integers, counts: Floats) -> Floats:
    """Return the value of isotonic regression for each group of sorted outcomes [N]."""
    from scipy.optimize import isotonic_regression  # slow to import, and not needed for labels

    # scipy fits tied scores separately: their mean, with their number as weight, gives them one value
    means = np.add.reduceat(outcome, starts) / counts
    return np.asarray(isotonic_regression(means, weights=counts).x, dtype=np.float64)

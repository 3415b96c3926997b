"""Calibration errors over bins, with the binning convention as a parameter, and reliability diagrams without bins.

Conventions differ between packages, and so do the numbers. Here, unless a caller chooses others:

- equal width: right-closed bins (l, u], confidence 0 in the first bin and 1 in the last;
- equal mass: a stable sort by confidence, split as `numpy.array_split` (the first n mod bins groups hold one
  sample more), so that every sample is in exactly one bin;
- 15 bins; an empty bin counts 0.

The diagrams without bins (CORP) have consistency bands and a decomposition of the Brier score. Their curve is the
isotonic regression of the outcomes on the confidence. It is calibrated, and no other non-decreasing function of the
confidence has a smaller Brier score (Dimitriadis, Gneiting & Jordan 2021, Stable reliability diagrams for probabilistic
classifiers, PNAS 118). With S the Brier score of the confidence, S_C that of the curve and S_R that of the plain
frequency,

    S = MCB − DSC + UNC,   MCB = S − S_C,   DSC = S_R − S_C,   UNC = S_R:

miscalibration, discrimination and uncertainty, the first two never negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import METRICS, Booleans, Floats, Integers, top_confidence
from trainables.registry import Hyperparameter

Bins = Annotated[int, Hyperparameter(range="[1, inf)", source="Guo et al. 2017, section 5")]
Scheme = Annotated[Literal["equal_width", "equal_mass"], Hyperparameter(source="Guo et al. 2017, section 5")]
Closed = Literal["right", "left"]
Norm = Annotated[
    Literal["mean", "maximum", "root_mean_square"], Hyperparameter(source="Hendrycks et al. 2019, arXiv:1812.04606")
]

#: Number of values from which an unstable sort with a repair of ties is faster than a stable sort.
MANY = 1024


@cache
def bin_edges(bins: int) -> Floats:
    """Return the `bins` + 1 edges of equal-width bins on [0, 1], as a read-only array."""
    edges = np.linspace(0.0, 1.0, bins + 1)
    # every caller gets the same cached array
    edges.setflags(write=False)
    return edges


def equal_width_bin(confidence: Floats, bins: int, closed: Closed = "right") -> Integers:
    """Return the equal-width bin of each confidence (any shape): (l, u] or, `closed="left"`, [l, u).

    Confidence 0 is in the first bin and 1 (or 1 plus rounding) in the last, whichever end is closed.

    Example:
        >>> equal_width_bin(np.array([0.0, 0.5, 0.7, 1.0]), bins=2).tolist()
        [0, 0, 1, 1]
    """
    # a search in the edges themselves: ⌈c·bins⌉ would round some confidences on an edge into the wrong bin
    side: Literal["left", "right"] = "left" if closed == "right" else "right"
    index = np.searchsorted(bin_edges(bins), confidence, side=side) - 1
    return np.clip(index, 0, bins - 1, out=index).astype(np.int64, copy=False)


def stable_order(values: Floats) -> Integers:
    """Return `argsort(kind="stable")` of `values` [..., N] along the last axis, several times as fast for large N.

    Numpy's fastest sort does not keep the order of equal values; this function restores it afterwards.
    """
    if values.shape[-1] < MANY:
        return np.argsort(values, axis=-1, kind="stable")
    if values.ndim > 1:
        return np.stack([stable_order(row) for row in values])
    order = np.argsort(values)
    ascending = values[order]
    ties = ascending[1:] == ascending[:-1]
    if ties.any():
        tied = np.append(ties, False)
        tied[1:] |= ties
        # one sort for all runs of ties: a run's number times N, plus the index, orders within runs only
        groups = np.concatenate(([0], np.cumsum(~ties)))[tied] * len(values)
        order[tied] = np.sort(groups + order[tied]) - groups
    return order


def equal_mass_starts(samples: int, bins: int) -> Integers:
    """Return the start of each of `bins` groups of a sorted array, split as `numpy.array_split` does."""
    index = np.arange(bins, dtype=np.int64)
    return index * (samples // bins) + np.minimum(index, samples % bins)


def bin_of_each(confidence: Floats, bins: int, scheme: Scheme = "equal_width", closed: Closed = "right") -> Integers:
    """Return the bin of each confidence [..., N]; `closed` applies to equal width only."""
    if scheme == "equal_width":
        return equal_width_bin(confidence, bins, closed)
    samples = confidence.shape[-1]
    groups = np.repeat(np.arange(bins), np.diff(equal_mass_starts(samples, bins), append=samples))
    index = np.empty(confidence.shape, dtype=np.int64)
    np.put_along_axis(index, stable_order(confidence), np.broadcast_to(groups, confidence.shape), axis=-1)
    return index


def calibration_error(
    confidence: Floats,
    outcome: Floats,
    bins: int = 15,
    scheme: Scheme = "equal_width",
    closed: Closed = "right",
    norm: Norm = "mean",
) -> float:
    """Return the binned calibration error of a confidence [N] against outcomes [N], a number in [0, 1].

    Args:
        confidence: [N] in [0, 1].
        outcome: [N], 1 or 0, or probabilities.
        bins: number of bins, at least 1 and, for equal mass, at most N.
        scheme: `equal_width`, or `equal_mass` for AdaECE (Nguyen & O'Connor 2015; mukhoti Eq. 3).
        closed: end of an equal-width bin that belongs to it.
        norm: `mean` for ECE, Σ_b n_b/n |acc_b − conf_b| (Naeini et al. 2015; mukhoti §3); `maximum` for MCE,
            max_b |acc_b − conf_b| (Naeini et al. 2015); `root_mean_square` for √(Σ_b n_b/n (acc_b − conf_b)²)
            (Hendrycks et al. 2019, arXiv:1812.04606).

    Example:
        >>> confidence, outcome = np.array([0.6, 0.6, 0.9, 0.9]), np.array([1.0, 0.0, 1.0, 1.0])
        >>> round(calibration_error(confidence, outcome, bins=5), 4)  # (0.6 − 0.5)/2 + (1 − 0.9)/2
        0.1
    """
    index = bin_of_each(confidence, bins, scheme, closed)
    count = np.bincount(index, minlength=bins)
    sums = sums_by_bin(index, confidence - outcome, bins)
    return float(norm_of_gaps(sums, count, norm))


def norm_of_gaps(gap_sums: Floats, counts: Floats | Integers, norm: Norm) -> Floats:
    """Reduce the last axis, Σ(confidence − outcome) and count of each bin, to a calibration error.

    The norms are those of `calibration_error`; an empty bin counts 0.
    """
    samples = counts.sum(axis=-1)
    if norm == "mean":
        # n_b/n·|Σ gap/n_b| = |Σ gap|/n: no division by the count of an empty bin
        return np.asarray(np.abs(gap_sums).sum(axis=-1) / samples)
    mean_gap = np.abs(gap_sums) / np.maximum(counts, 1)
    if norm == "maximum":
        return np.asarray(mean_gap.max(axis=-1))
    return np.asarray(np.sqrt((counts * mean_gap**2).sum(axis=-1) / samples))


def classwise_calibration_error(
    probabilities: Floats, targets: Integers, bins: int = 15, scheme: Scheme = "equal_width", closed: Closed = "right"
) -> Floats:
    """Return the class-wise ECE, (1/K) Σ_k Σ_b n_bk/n |freq_bk − conf_bk|: the ECE of p_k against 1[y = k], averaged.

    Each class is binned over all n samples (selective §5; Kull et al. 2019). `probabilities` [..., N, K], `targets`
    [N]; the result is [...].

    Example:
        >>> float(classwise_calibration_error(np.array([[0.8, 0.2], [0.6, 0.4]]), np.array([0, 0]), bins=1).round(4))
        0.3
    """
    # classes first: the searches and sorts below then run over contiguous rows
    of_class = np.ascontiguousarray(probabilities.swapaxes(-1, -2))
    classes, samples = of_class.shape[-2:]
    gaps = of_class - (targets == np.arange(classes)[:, None])
    if scheme == "equal_width":
        sums = sums_by_bin(equal_width_bin(of_class, bins, closed), gaps, bins)
    else:
        sums = group_sums(np.take_along_axis(gaps, stable_order(of_class), axis=-1), bins)
    return np.asarray(np.abs(sums).reshape(*sums.shape[:-2], -1).sum(axis=-1) / (samples * classes))


def sums_by_bin(index: Integers, values: Floats | Booleans, bins: int) -> Floats:
    """Return the sum of `values` [..., N] in each of `bins` bins; `index` [..., N] is the bin of each value."""
    rows = index.reshape(-1, index.shape[-1])
    # bins of different rows get different numbers, so one `bincount` sums all
    cells = (rows + bins * np.arange(len(rows))[:, None]).ravel()
    sums = np.bincount(cells, weights=values.ravel(), minlength=len(rows) * bins)
    return sums.reshape(*index.shape[:-1], bins).astype(np.float64, copy=False)


def group_sums(values: Floats, bins: int) -> Floats:
    """Return the sums [..., bins] of the equal-mass groups of sorted `values` [..., N], where N is at least `bins`."""
    return np.asarray(np.add.reduceat(values, equal_mass_starts(values.shape[-1], bins), axis=-1))


@METRICS.add("calibration_error", range=(0, 1))
def binned_error(
    probabilities: Floats,
    targets: Integers,
    bins: Bins = 15,
    scheme: Scheme = "equal_width",
    norm: Norm = "root_mean_square",
) -> float:
    """Calibration error with the bins and norm you choose; `ece`, `ada_ece` and `mce` are always measured.

    Return the `calibration_error` of the top confidence of probabilities [N, K] against targets [N].

    Source: Naeini et al. 2015; Hendrycks et al. 2019.

    Args:
        scheme: [mukhoti §3].

    Example:
        >>> probabilities, targets = np.array([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]]), np.array([0, 1, 1])
        >>> round(binned_error(probabilities, targets, bins=5, norm="maximum"), 4)
        0.1
    """
    return calibration_error(*top_confidence(probabilities, targets), bins, scheme, norm=norm)


#: Level and number of resamples of the band, as in the figures of Dimitriadis et al. 2021.
BAND_LEVEL = 0.9
REPETITIONS = 100

#: Points of a band's curve: more would not be visible in a figure.
BAND_POINTS = 60


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


def decomposition(confidence: Floats, outcome: Floats) -> Decomposition:
    """Return the Brier score of a confidence [N] against outcomes [N], 0 or 1, and its parts.

    Example:
        >>> decomposition(np.array([0.25, 0.25, 0.75, 0.75]), np.array([0.0, 0.0, 1.0, 1.0]))
        Decomposition(score=0.0625, miscalibration=0.0625, discrimination=0.25, uncertainty=0.25)
    """
    recalibrated = np.interp(confidence, *isotonic_levels(confidence, outcome))
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
    starts = np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))
    return ascending[starts], starts, np.diff(starts, append=len(ascending)).astype(np.float64)


def _fitted(outcome: Floats, starts: Integers, counts: Floats) -> Floats:
    """Return the value of isotonic regression for each group of sorted outcomes [N]."""
    from scipy.optimize import isotonic_regression  # slow to import, and not needed for labels

    # scipy fits tied scores separately: their mean, with their number as weight, gives them one value
    means = np.add.reduceat(outcome, starts) / counts
    return np.asarray(isotonic_regression(means, weights=counts).x, dtype=np.float64)

"""Calibration errors over bins.

Conventions differ between packages, and so do the numbers. Here, unless a caller chooses others:

- equal width: right-closed bins (l, u], confidence 0 in the first bin and 1 in the last;
- equal mass: samples sorted by confidence, split as `numpy.array_split` (the first n mod bins groups hold one sample
  more);
- 15 bins; an empty bin counts 0.

A bound of equal-mass bins can lie within samples of one confidence. Which of them are in which bin would then depend on
their order in the file. Every value here is instead that of the mean over this order: with T_i the samples tied with i,
each sample has its group's mean outcome, Σ_{j ∈ T_i} y_j/|T_i|. In other words, sample i belongs to bin b by the share
w_ib of T_i's places that are in b, and a bin's sum is Σ_i w_ib y_i. Without ties across a bound, w_ib is 0 or 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import numpy as np

from trainables.metrics.base import METRICS, Booleans, Floats, Integers, top_confidence
from trainables.registry import Hyperparameter

Bins = Annotated[int, Hyperparameter(range="[1, inf)", source="Guo et al. 2017, section 5")]
Scheme = Annotated[Literal["equal_width", "equal_mass"], Hyperparameter(source="Guo et al. 2017, section 5")]
Norm = Annotated[
    Literal["mean", "maximum", "root_mean_square"], Hyperparameter(source="Hendrycks et al. 2019, arXiv:1812.04606")
]


@cache
def bin_edges(bins: int) -> Floats:
    """Return the `bins` + 1 edges of equal-width bins on [0, 1], as a read-only array."""
    edges = np.linspace(0.0, 1.0, bins + 1)
    # every caller gets the same cached array
    edges.setflags(write=False)
    return edges


def equal_width_bin(confidence: Floats, bins: int) -> Integers:
    """Return the equal-width bin (l, u] of each confidence (any shape).

    Confidence 0 is in the first bin and 1 (or 1 plus rounding) in the last.

    Example:
        >>> equal_width_bin(np.array([0.0, 0.5, 0.7, 1.0]), bins=2).tolist()
        [0, 0, 1, 1]
    """
    # a search in the edges themselves: ⌈c·bins⌉ would round some confidences on an edge into the wrong bin
    index = np.searchsorted(bin_edges(bins), confidence, side="left") - 1
    return np.clip(index, 0, bins - 1, out=index).astype(np.int64, copy=False)


def equal_mass_starts(samples: int, bins: int) -> Integers:
    """Return the start of each of `bins` groups of a sorted array, split as `numpy.array_split` does."""
    index = np.arange(bins, dtype=np.int64)
    return index * (samples // bins) + np.minimum(index, samples % bins)


def mean_of_ties(ascending: Floats, values: Floats | Booleans) -> Floats:
    """Return the mean of `values` [..., N] over samples of the same score, for sorted scores `ascending` [..., N].

    A value of a score that occurs once stays the same to the last bit, and sums of the result depend on no order.

    Example:
        >>> mean_of_ties(np.array([0.5, 0.7, 0.7, 0.9]), np.array([1.0, 1.0, 0.0, 0.0])).tolist()
        [1.0, 0.5, 0.5, 0.0]
    """
    outcome = np.asarray(values, dtype=np.float64)
    first = np.ones(outcome.shape, dtype=bool)
    first[..., 1:] = ascending[..., 1:] != ascending[..., :-1]
    if first.all():
        return outcome
    starts = np.flatnonzero(first)
    sizes = np.diff(starts, append=first.size)
    return np.repeat(np.add.reduceat(outcome.ravel(), starts) / sizes, sizes).reshape(outcome.shape)


@dataclass(frozen=True)
class Binning:
    """The bins of samples, where samples tied across a bound belong to several.

    Attributes:
        bins: number of bins B.
        cell: cell of each sample [..., N]: its bin, or B + the first of its bins if it belongs to several.
        membership: share of a sample of each cell in each bin [..., 2B, B]; `None` if no sample belongs to several.
    """

    bins: int
    cell: Integers
    membership: Floats | None = None

    @property
    def cells(self) -> int:
        """Number of cells: B, or 2B if samples belong to several bins."""
        return self.bins if self.membership is None else 2 * self.bins

    def sums(self, values: Floats | Booleans) -> Floats:
        """Return Σ_i w_ib v_i [..., B] for `values` v [..., N]."""
        return self.of_bins(sums_by_bin(self.cell, values, self.cells)[..., None])[..., 0]

    def of_bins(self, of_cells: Floats) -> Floats:
        """Return the sums [..., B, R] of bins from those of cells [..., C, R]."""
        return of_cells if self.membership is None else np.asarray(self.membership.swapaxes(-1, -2) @ of_cells)

    def counts(self) -> tuple[Floats, Floats]:
        """Return Σ_i w_ib and Σ_i w_ib² [..., B], which are equal if no sample belongs to several bins."""
        of_cells = sums_by_bin(self.cell, np.ones(self.cell.shape), self.cells)
        if self.membership is None:
            return of_cells, of_cells
        once, squared = (of_cells[..., None, :] @ share for share in (self.membership, self.membership**2))
        return once[..., 0, :], squared[..., 0, :]


def binning_of(confidence: Floats, bins: int, scheme: Scheme = "equal_width") -> Binning:
    """Return the bins of confidences [..., N].

    Example:
        >>> binning_of(np.full(4, 0.7), bins=2, scheme="equal_mass").sums(np.array([0.0, 0.0, 1.0, 1.0])).tolist()
        [1.0, 1.0]
    """
    if scheme == "equal_width":
        return Binning(bins, equal_width_bin(confidence, bins))
    samples = confidence.shape[-1]
    starts = equal_mass_starts(samples, bins)
    of_place = np.repeat(np.arange(bins), np.diff(starts, append=samples))
    order = np.argsort(confidence, axis=-1)
    ascending, places = np.take_along_axis(confidence, order, axis=-1), np.broadcast_to(of_place, confidence.shape)
    cut = ((ascending[..., 1:] == ascending[..., :-1]) & (of_place[1:] != of_place[:-1])).any(axis=-1)
    membership = None
    if cut.any():
        places, membership = places.copy(), np.zeros((*cut.shape, 2 * bins, bins))
        membership[..., :bins, :] = np.eye(bins)
        for row in np.argwhere(cut):
            membership[tuple(row)][bins:] = _shared_out(ascending[tuple(row)], starts, places[tuple(row)])
    cell = np.empty(confidence.shape, dtype=np.int64)
    np.put_along_axis(cell, order, places, axis=-1)
    return Binning(bins, cell, membership)


def _shared_out(ascending: Floats, starts: Integers, cells: Integers) -> Floats:
    """Write the cells of samples [N] tied across a bound, and return their shares [B, B] by first bin and bin."""
    bins, ends = len(starts), np.append(starts[1:], len(ascending))
    shares = np.zeros((bins, bins))
    for b in np.flatnonzero(ends > starts):
        tied = ascending[ends[b] - 1]
        first, after = np.searchsorted(ascending, tied, "left"), np.searchsorted(ascending, tied, "right")
        if first >= starts[b] and after > ends[b]:  # begins in this bin and goes on in the next
            cells[first:after] = bins + b
            shares[b] = np.maximum(np.minimum(after, ends) - np.maximum(first, starts), 0) / (after - first)
    return shares


def calibration_error(
    confidence: Floats, outcome: Floats, bins: int = 15, scheme: Scheme = "equal_width", norm: Norm = "mean"
) -> float:
    """Return the binned calibration error of a confidence [N] against outcomes [N], a number in [0, 1].

    Args:
        confidence: [N] in [0, 1].
        outcome: [N], 1 or 0, or probabilities.
        bins: number of bins, at least 1 and, for equal mass, at most N.
        scheme: `equal_width`, or `equal_mass` for AdaECE (Nguyen & O'Connor 2015; mukhoti Eq. 3).
        norm: `mean` for ECE, Σ_b n_b/n |acc_b − conf_b| (Naeini et al. 2015; mukhoti §3); `maximum` for MCE,
            max_b |acc_b − conf_b| (Naeini et al. 2015); `root_mean_square` for √(Σ_b n_b/n (acc_b − conf_b)²)
            (Hendrycks et al. 2019, arXiv:1812.04606).

    Example:
        >>> confidence, outcome = np.array([0.6, 0.6, 0.9, 0.9]), np.array([1.0, 0.0, 1.0, 1.0])
        >>> round(calibration_error(confidence, outcome, bins=5), 4)  # (0.6 − 0.5)/2 + (1 − 0.9)/2
        0.1
    """
    binning = binning_of(confidence, bins, scheme)
    return float(norm_of_gaps(binning.sums(confidence - outcome), binning.counts()[0], norm))


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
    probabilities: Floats, targets: Integers, bins: int = 15, scheme: Scheme = "equal_width"
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
    happened = targets == np.arange(classes)[:, None]
    if scheme == "equal_width":
        sums = sums_by_bin(equal_width_bin(of_class, bins), of_class - happened, bins)
    else:
        order = np.argsort(of_class, axis=-1)
        ascending = np.take_along_axis(of_class, order, axis=-1)
        in_order = np.take_along_axis(np.broadcast_to(happened, of_class.shape), order, axis=-1)
        sums = group_sums(ascending - mean_of_ties(ascending, in_order), bins)
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


@METRICS.add("calibration_error", mode="min", range=(0, 1))
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

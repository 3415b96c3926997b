"""Bootstrap standard errors of metrics: samples drawn with replacement, the metric recomputed, its spread taken.

ECE-type metrics are sums over bins of signed gaps, so a resample needs no more than how often each sample was
drawn: all repetitions become one matrix product. They are biased upward at small n, which no standard error
shows: report n beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers, always_measured, require_probabilities
from trainables.metrics.binning import equal_mass_starts, equal_width_bin, norm_of_gaps, stable_order
from trainables.metrics.evaluate import evaluate_probabilities

#: Metrics whose repetitions are computed together; any other name recomputes `evaluate_probabilities` each time.
TOGETHER = ("ece", "ada_ece", "mce", "cw_ece", "cw_ada_ece")

_BLOCK_ELEMENTS = 4_000_000  # repetitions × samples held at once: 32 MB in float64
_CACHED = 2**16  # of these sorted at once: their gaps, half a MiB in float64, stay in a core's cache
_TOGETHER = 2**20  # repetitions × samples × classes that are added up at once


def bootstrap_standard_error(
    metrics: str | Sequence[str],
    probabilities: ArrayLike,
    targets: ArrayLike,
    bins: int = 15,
    repetitions: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """Return the bootstrap standard error of each metric, under `<name>_se`.

    Args:
        metrics: names of METRIC_NAMES, or one of them.
        probabilities: [N, K], rows on the simplex.
        targets: [N] class indices.
        bins: number of bins, at most N.
        repetitions: resamples; the error's own relative error is about 1/√(2·repetitions).
        seed: of the resampling; equal seeds give equal resamples for every metric.

    Raises:
        UnusablePredictions: as `evaluate_probabilities`.
        ValueError: an unknown metric name or fewer than 2 repetitions.
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    require_probabilities(values, targets, bins)
    labels: Integers = np.asarray(targets, dtype=np.int64)
    if repetitions < 2:
        raise ValueError(f"repetitions = {repetitions} must be at least 2: a spread needs two values")
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    known = always_measured()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown metric {', '.join(unknown)}; known: {', '.join(known)}")
    spread = _fast_spreads(values, labels, [n for n in names if n in TOGETHER], bins, repetitions, seed)
    slow = [name for name in names if name not in TOGETHER]
    if slow:
        draws = np.random.default_rng(seed).integers(0, len(labels), size=(repetitions, len(labels)))
        repeats = [evaluate_probabilities(values[d], labels[d], bins, slow) for d in draws]
        spread |= {name: float(np.std([r[name] for r in repeats], ddof=1)) for name in slow}
    return {f"{name}_se": spread[name] for name in names}


def _fast_spreads(
    values: Floats, labels: Integers, names: Sequence[str], bins: int, repetitions: int, seed: int
) -> dict[str, float]:
    """Return the standard errors of the metrics of TOGETHER. Samples are sorted by confidence once, for equal mass."""
    if not names:
        return {}
    order = stable_order(values.max(axis=1))
    values, labels = values[order], labels[order]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK_ELEMENTS // len(order))
    repeats: dict[str, list[Floats]] = {name: [] for name in names}
    for start in range(0, repetitions, block):
        drawn = place.take(rng.integers(0, len(order), size=(min(block, repetitions - start), len(order))))
        for name, found in _repeated_metrics(values, labels, _counts(drawn), names, bins).items():
            repeats[name].append(found)
    return {name: float(np.concatenate(found).std(ddof=1)) for name, found in repeats.items()}


def _counts(drawn: Integers) -> Floats:
    """Return how often each sample is in each of the resamples `drawn` [R, N], [R, N]."""
    places = drawn + np.arange(len(drawn))[:, None] * drawn.shape[1]
    return np.bincount(places.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def _repeated_metrics(
    values: Floats, labels: Integers, counts: Floats, names: Sequence[str], bins: int
) -> dict[str, Floats]:
    """Return each metric [R] on resamples with `counts` [R, N] of samples that ascend in confidence."""
    samples, classes = values.shape
    confidence = values.max(axis=1)
    gap = confidence - (values.argmax(axis=1) == labels)
    found: dict[str, Floats] = {}
    if "ada_ece" in names:
        found["ada_ece"] = _equal_mass_gaps(gap[None], np.arange(samples)[None], counts, bins) / samples
    if "cw_ece" in names or "cw_ada_ece" in names:
        of_class = np.ascontiguousarray(values.T)
        gaps = of_class.copy()
        gaps[labels, np.arange(samples)] -= 1.0
    if "cw_ada_ece" in names:
        # samples of equal probability keep their order, as in `classwise_calibration_error` of the resample itself
        orders = stable_order(of_class)
        found["cw_ada_ece"] = _equal_mass_gaps(gaps, orders, counts, bins) / (samples * classes)
    if "ece" in names or "mce" in names:
        index = equal_width_bin(confidence, bins)
        one_column_a_bin = np.eye(bins)[index]
        columns = np.hstack([gap[:, None] * one_column_a_bin, one_column_a_bin])
        sums, sizes = np.hsplit(counts @ columns, 2)
        found |= {"ece": norm_of_gaps(sums, sizes, "mean"), "mce": norm_of_gaps(sums, sizes, "maximum")}
    if "cw_ece" in names:
        times = np.ascontiguousarray(counts.T)
        found["cw_ece"] = _equal_width_gaps(of_class, gaps, times, bins) / (samples * classes)
    return {name: found[name] for name in names}


def _equal_width_gaps(of_class: Floats, gaps: Floats, times: Floats, bins: int) -> Floats:
    """Return Σ_k Σ_b |Σ gap| [R] over the equal-width bins of each class's probabilities, by resample.

    Most probabilities of many classes are in the first bin. Its sum is what the other bins leave of the class's, so
    only the samples of those are added up.

    Args:
        of_class: probabilities [K, N].
        gaps: probability less outcome [K, N].
        times: how often each sample is in each resample [N, R].
        bins: their number.
    """
    total: Floats = np.zeros(times.shape[1])
    first = gaps @ times
    together = max(1, _TOGETHER // times.size)
    for start in range(0, len(gaps), together):
        index = equal_width_bin(of_class[start : start + together], bins)
        classes, chosen = np.nonzero(index)
        if not len(chosen):
            continue
        bin_of_all = classes * bins + index[classes, chosen]
        order = np.argsort(bin_of_all, kind="stable")
        classes, chosen, bin_of_all = start + classes[order], chosen[order], bin_of_all[order]
        of_each = times.take(chosen, axis=0)
        of_each *= gaps[classes, chosen][:, None]
        begins = np.flatnonzero(np.diff(bin_of_all, prepend=-1))
        sums, classes = np.add.reduceat(of_each, begins, axis=0), classes[begins]
        begins = np.flatnonzero(np.diff(classes, prepend=-1))
        first[classes[begins]] -= np.add.reduceat(sums, begins, axis=0)
        total += np.abs(sums, out=sums).sum(axis=0)
    total += np.abs(first, out=first).sum(axis=0)
    return total


def _equal_mass_gaps(gaps: Floats, orders: Integers, counts: Floats, bins: int) -> Floats:
    """Return Σ_k Σ_b |Σ gap| [R] over the equal-mass bins of each class in each resample.

    No resample is sorted: the draws of sorted samples, all resamples one after the other, are counted up to the ends
    of the bins. The last sample of a bin may be drawn several times; what of these draws is beyond its end is the next
    one's.

    Args:
        gaps: probability less outcome [K, N].
        orders: the samples of each class as they are to be sorted [K, N].
        counts: of each sample in each resample [R, N].
        bins: their number.
    """
    import torch

    def running_sum(values: Floats) -> Floats:
        summed: Floats = torch.from_numpy(values.ravel()).cumsum(0).numpy()  # numpy's own takes three times as long
        return summed

    repetitions, samples = counts.shape
    total: Floats = np.zeros(repetitions)
    block = min(repetitions, max(1, _CACHED // samples))
    starts = equal_mass_starts(samples, bins)
    for first in range(0, repetitions, block):
        rows = counts[first : first + block]
        ends = np.append(np.add.outer(np.arange(len(rows)) * samples, starts), len(rows) * samples)
        for gap, order in zip(gaps, orders, strict=True):
            ascending = gap[order]
            drawn = rows.take(order, axis=1)
            number, summed = running_sum(drawn), running_sum(drawn * ascending)
            last = number.searchsorted(ends)
            up_to = summed[last] - (number[last] - ends) * ascending[last % samples]
            total[first : first + block] += np.abs(np.diff(up_to)).reshape(len(rows), bins).sum(axis=1)
    return total

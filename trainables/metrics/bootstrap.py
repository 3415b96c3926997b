"""Bootstrap standard errors of metrics: samples drawn with replacement, the metric recomputed, its spread taken.

ECE-type metrics are sums over bins of signed gaps, so a resample needs no more than how often each sample was
drawn: all repetitions become one matrix product. They are biased upward at small n, which no standard error
shows: report n beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainables.metrics import METRIC_NAMES, evaluate_probabilities
from trainables.metrics.binning import equal_width_bin, group_sums, norm_of_gaps
from trainables.metrics.probabilities import Floats, Integers, require_probabilities

BOOTSTRAPPED = ("ece", "ada_ece", "mce", "cw_ece", "cw_ada_ece")
"""The binned errors, which are biased at small samples: every evaluation reports the standard error of each.

Their repetitions are computed together; any other name recomputes `evaluate_probabilities` each time."""

Metric = Callable[[Floats, Integers], float]
Places = Integers | NDArray[np.uint16]

_BLOCK_ELEMENTS = 4_000_000  # repetitions × samples held at once: 32 MB in float64


def bootstrap_standard_error(
    metrics: str | Metric | Sequence[str],
    probabilities: ArrayLike,
    targets: ArrayLike,
    bins: int = 15,
    repetitions: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """Return the bootstrap standard error of each metric, under `<name>_se`.

    Args:
        metrics: names of METRIC_NAMES, or one function of (probabilities, targets), reported by its `__name__`.
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
    if callable(metrics):
        name = getattr(metrics, "__name__", "metric")
        return {f"{name}_se": _spread(metrics(values[d], labels[d]) for d in _draws(len(labels), repetitions, seed))}
    names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    unknown = [name for name in names if name not in METRIC_NAMES]
    if unknown:
        raise ValueError(f"unknown metric {', '.join(unknown)}; known: {', '.join(METRIC_NAMES)}")
    spread = _fast_spreads(values, labels, [n for n in names if n in BOOTSTRAPPED], bins, repetitions, seed)
    slow = [name for name in names if name not in BOOTSTRAPPED]
    if slow:
        repeats = [evaluate_probabilities(values[d], labels[d], bins) for d in _draws(len(labels), repetitions, seed)]
        spread |= {name: _spread(r[name] for r in repeats) for name in slow}
    return {f"{name}_se": spread[name] for name in names}


def _draws(samples: int, repetitions: int, seed: int) -> Integers:
    """Return the drawn sample indices [repetitions, samples]."""
    return np.random.default_rng(seed).integers(0, samples, size=(repetitions, samples))


def _spread(values: Iterable[float]) -> float:
    return float(np.std(np.fromiter(values, dtype=np.float64), ddof=1))


def _fast_spreads(
    values: Floats, labels: Integers, names: Sequence[str], bins: int, repetitions: int, seed: int
) -> dict[str, float]:
    """Return the standard errors of BOOTSTRAPPED metrics. Samples are sorted by confidence once, for equal mass."""
    if not names:
        return {}
    confidence = values.max(axis=1)
    order = np.argsort(confidence, kind="stable")
    values, labels, confidence = values[order], labels[order], confidence[order]
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK_ELEMENTS // len(order))
    repeats: dict[str, list[Floats]] = {name: [] for name in names}
    for start in range(0, repetitions, block):
        drawn = place[rng.integers(0, len(order), size=(min(block, repetitions - start), len(order)))]
        for name, found in _repeated_metrics(values, labels, confidence, drawn, names, bins).items():
            repeats[name].append(found)
    return {name: float(np.concatenate(found).std(ddof=1)) for name, found in repeats.items()}


def _repeated_metrics(
    values: Floats, labels: Integers, confidence: Floats, drawn: Integers, names: Sequence[str], bins: int
) -> dict[str, Floats]:
    """Return each metric [R] on resamples `drawn` [R, N] of samples that ascend in confidence."""
    repetitions, samples = drawn.shape
    gap = confidence - (values.argmax(axis=1) == labels)
    found: dict[str, Floats] = {}
    if "ada_ece" in names:
        found["ada_ece"] = _equal_mass_gaps(gap, _narrow(drawn), bins) / samples
    if "cw_ada_ece" in names:
        found["cw_ada_ece"] = _repeated_classwise_equal_mass(values, labels, _narrow(drawn), bins)
    if not set(names) - set(found):
        return {name: found[name] for name in names}
    offsets = np.arange(repetitions)[:, None] * samples
    times = np.bincount((drawn + offsets).ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)
    if "ece" in names or "mce" in names:
        index = equal_width_bin(confidence, bins)
        sums = times @ _one_column_a_bin(index, gap, bins)
        counts = times @ _one_column_a_bin(index, np.ones(samples), bins)
        found |= {"ece": norm_of_gaps(sums, counts, "mean"), "mce": norm_of_gaps(sums, counts, "maximum")}
    if "cw_ece" in names:
        found["cw_ece"] = _repeated_classwise(values, labels, times, bins)
    return {name: found[name] for name in names}


def _repeated_classwise(values: Floats, labels: Integers, times: Floats, bins: int) -> Floats:
    """Return the class-wise ECE [R] of resamples in which sample i occurs `times` [R, N] times."""
    samples, classes = values.shape
    total: Floats = np.zeros(len(times))
    for k in range(classes):
        columns = _one_column_a_bin(equal_width_bin(values[:, k], bins), values[:, k] - (labels == k), bins)
        total += np.abs(times @ columns).sum(axis=1)
    means: Floats = total / (samples * classes)
    return means


def _repeated_classwise_equal_mass(values: Floats, labels: Integers, drawn: Places, bins: int) -> Floats:
    """Return the class-wise equal-mass ECE [R] of resamples `drawn` [R, N].

    Samples of equal probability keep their order, as in `classwise_calibration_error` of the resample itself.
    """
    samples, classes = values.shape
    total: Floats = np.zeros(len(drawn))
    for k in range(classes):
        order = np.argsort(values[:, k], kind="stable")
        rank = np.empty(samples, dtype=drawn.dtype)
        rank[order] = np.arange(samples, dtype=drawn.dtype)
        gap = values[:, k] - (labels == k)
        total += _equal_mass_gaps(gap[order], rank[drawn], bins)
    means: Floats = total / (samples * classes)
    return means


def _equal_mass_gaps(gap: Floats, drawn: Places, bins: int) -> Floats:
    """Return Σ_b |Σ gap| [R] over the equal-mass bins of resamples `drawn` [R, N] of sorted samples."""
    # sorting the drawn places is sorting what the samples were sorted by
    return np.asarray(np.abs(group_sums(gap[np.sort(drawn, axis=1)], bins, axis=1)).sum(axis=1))


def _narrow(drawn: Integers) -> Places:
    """Return places in 16 bits where they fit: those are sorted several times as fast."""
    return drawn.astype(np.uint16) if drawn.shape[1] <= 2**16 else drawn


def _one_column_a_bin(index: Integers, values: Floats, bins: int) -> Floats:
    """Return [N, bins] with each sample's value in its bin's column."""
    columns = np.zeros((len(values), bins))
    columns[np.arange(len(values)), index] = values
    return columns

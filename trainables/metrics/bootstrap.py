"""Bootstrap standard errors of metrics: draw samples with replacement, compute the metric again, take its spread.

A binned error is a sum of |Σ gap| over bins, and a resample is a vector of counts per sample. One sparse product of
each bin's gaps with these counts therefore computes all resamples. Equal-mass bins keep the bounds of the original
samples. Binned errors are biased upward at small n. A standard error does not show this bias, so report n as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers, always_measured, require_probabilities
from trainables.metrics.binning import Scheme, bin_of_each, norm_of_gaps
from trainables.metrics.evaluate import evaluate_probabilities

#: Metrics that are sums over bins, with their bins; other metrics call `evaluate_probabilities` for each resample.
BINNED: dict[str, Scheme] = {
    "ece": "equal_width",
    "ada_ece": "equal_mass",
    "mce": "equal_width",
    "cw_ece": "equal_width",
    "cw_ada_ece": "equal_mass",
}

_ELEMENTS = 4_000_000  # classes × samples whose gaps are held at once: 32 MB in float64


def bootstrap_standard_error(
    metrics: str | Sequence[str],
    probabilities: ArrayLike,
    targets: ArrayLike,
    bins: int = 15,
    repetitions: int = 100,
    seed: int = 0,
) -> dict[str, float]:
    """Return the bootstrap standard error of each metric, under `<name>_se` (Efron 1979).

    Args:
        metrics: one or several names of METRIC_NAMES.
        probabilities: [N, K], rows on the simplex.
        targets: [N] class indices.
        bins: number of bins, at most N.
        repetitions: number of resamples; the relative error of the result is about 1/√(2·repetitions).
        seed: seed of the resampling; equal seeds give equal resamples for every metric.

    Raises:
        UnusablePredictions: as `evaluate_probabilities`.
        ValueError: unknown metric name, or fewer than 2 repetitions.

    Example:
        >>> probabilities = np.array([[0.9, 0.1], [0.6, 0.4]] * 50)
        >>> targets = np.array([0, 0, 0, 1] * 25)
        >>> round(bootstrap_standard_error("accuracy", probabilities, targets)["accuracy_se"], 2)  # √(.75·.25/100)
        0.04
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
    # drawn once for all metrics: their differences then have no resampling noise of their own
    draws = np.random.default_rng(seed).integers(0, len(labels), size=(repetitions, len(labels)))
    repeats: dict[str, Floats] = {}
    if any(name in BINNED for name in names):
        counts = np.stack([np.bincount(draw, minlength=len(labels)) for draw in draws], axis=1).astype(np.float64)
        repeats = {name: _resampled(name, values, labels, counts, bins) for name in names if name in BINNED}
    if others := [name for name in names if name not in BINNED]:
        rows = [evaluate_probabilities(values[draw], labels[draw], bins, others) for draw in draws]
        repeats |= {name: np.array([row[name] for row in rows]) for name in others}
    return {f"{name}_se": float(repeats[name].std(ddof=1)) for name in names}


def _resampled(name: str, values: Floats, labels: Integers, counts: Floats, bins: int) -> Floats:
    """Return a binned error [R] on resamples; `counts` [N, R] says how often each resample holds a sample."""
    samples, classes = values.shape
    if not name.startswith("cw_"):
        confidence = values.max(axis=1)
        gaps = confidence - (values.argmax(axis=1) == labels)
        index = bin_of_each(confidence, bins, BINNED[name])[None]
        sums = _sums(index, gaps[None], counts, bins)
        sizes = _sums(index, np.ones_like(index, dtype=np.float64), counts, bins)
        return norm_of_gaps(sums.T, sizes.T, "maximum" if name == "mce" else "mean")
    total: Floats = np.zeros(counts.shape[1])
    for first, of_class in _blocks(values):
        index = np.stack([bin_of_each(column, bins, BINNED[name]) for column in of_class])
        gaps = of_class - (labels == np.arange(first, first + len(of_class))[:, None])
        total += np.abs(_sums(index, gaps, counts, bins)).sum(axis=0)
    return np.asarray(total / (samples * classes))


def _blocks(values: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield the first class of each block of classes, and the probabilities of the block [k, N]."""
    # at least one class; at most `_ELEMENTS` numbers, so 1,000 classes of 50,000 samples fit in memory
    together = max(1, _ELEMENTS // len(values))
    for first in range(0, values.shape[1], together):
        yield first, np.ascontiguousarray(values[:, first : first + together].T)


def _sums(index: Integers, gaps: Floats, counts: Floats, bins: int) -> Floats:
    """Return Σ gap [k·bins, R] in each bin of each class, for bins `index` and `gaps` [k, N] and `counts` [N, R]."""
    from scipy.sparse import csr_array  # slow to import, and not needed for labels

    classes, samples = index.shape
    place = (index + bins * np.arange(classes)[:, None]).ravel()
    order = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place, minlength=classes * bins))
    rows = csr_array((gaps.ravel()[order], order % samples, np.append(0, ends)), shape=(classes * bins, samples))
    return np.asarray(rows @ counts)

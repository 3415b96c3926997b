"""From logits to class probabilities in float64, and the checks that every metric and post-hoc method shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

SMALLEST_PROBABILITY = float(np.finfo(np.float64).tiny)
"""A probability that underflowed to 0 counts as this in logarithms: a sample's nll is at most 708.4, not infinite."""


class UnusablePredictions(ValueError):  # noqa: N818 - says what is the matter, as the project's errors do
    """Predictions or targets that no metric or post-hoc method can use; the message says value, rule and remedy."""


def log_softmax64(logits: ArrayLike) -> Floats:
    """Return log softmax, z − log Σ_k exp z_k, of `logits` z [..., K] in float64.

    Accepts anything numpy can read, CPU tensors included.
    """
    values = np.asarray(logits, dtype=np.float64)
    shifted: Floats = values - values.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def softmax64(logits: ArrayLike) -> Floats:
    """Return softmax of `logits` [..., K] in float64.

    Float32 probabilities tie thousands of confidences near 1 on ordinary test sets, which moves rank-based
    metrics; float64 keeps them apart.
    """
    values = np.asarray(logits, dtype=np.float64)
    weights: Floats = np.exp(values - values.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def require_logits(
    logits: ArrayLike, targets: ArrayLike, error: type[UnusablePredictions] = UnusablePredictions
) -> None:
    """Raise `error`, naming every fault at once, unless logits [N, K] are finite and targets [N] lie in [0, K)."""
    scores, labels = np.asarray(logits), np.asarray(targets)
    faults = _shape_faults(scores, labels, "logits")
    if not faults:
        faults += _finite_faults(scores, "logits") + _label_faults(labels, scores.shape[1])
    if faults:
        raise error("; ".join(faults))


def require_probabilities(probabilities: Floats, targets: ArrayLike, bins: int) -> None:
    """Raise `UnusablePredictions`, naming every fault at once, unless metrics over `bins` bins can be computed.

    The rules: probabilities [N, K] are finite, in [0, 1], and each row sums to 1; targets [N] are whole numbers
    in [0, K); bins is at least 1 and at most N.
    """
    labels = np.asarray(targets)
    faults = _shape_faults(probabilities, labels, "probabilities")
    if not faults:
        faults += _finite_faults(probabilities, "probabilities") or _simplex_faults(probabilities)
        faults += _label_faults(labels, probabilities.shape[1]) + bin_faults(len(labels), bins)
    if faults:
        raise UnusablePredictions("; ".join(faults))


def bin_faults(samples: int, bins: int) -> list[str]:
    """Return the rules that `bins` bins over `samples` samples break, one sentence each."""
    if bins < 1:
        return [f"bins = {bins} must be at least 1"]
    if samples < bins:
        return [f"{samples} samples are fewer than {bins} bins: use at most {samples} bins or more samples"]
    return []


def _shape_faults(scores: NDArray[np.generic], labels: NDArray[np.generic], what: str) -> list[str]:
    if scores.ndim != 2 or scores.shape[0] == 0:
        return [f"{what} of shape {scores.shape} must be [samples, classes] with at least one sample"]
    if scores.shape[1] < 2:
        return [f"{what} with {scores.shape[1]} class: calibration needs at least two classes"]
    if labels.shape != scores.shape[:1]:
        return [f"targets of shape {labels.shape} must be one class index for each of {scores.shape[0]} samples"]
    return []


def _finite_faults(values: NDArray[np.generic], what: str) -> list[str]:
    finite = np.isfinite(values)
    if finite.all():
        return []
    row, column = (int(i) for i in np.argwhere(~finite)[0])
    rows = int((~finite.all(axis=1)).sum())
    return [
        f"{what} hold {values[row, column]} (sample {row}, class {column}; {rows} of {len(values)} samples): "
        f"they must be finite; the network diverged, so lower the learning rate or drop those samples"
    ]


def _simplex_faults(probabilities: Floats) -> list[str]:
    if probabilities.min() < 0.0 or probabilities.max() > 1.0 + 1e-6:
        low, high = probabilities.min(), probabilities.max()
        return [f"probabilities from {low:g} to {high:g} must lie in [0, 1]: pass softmax outputs, not logits"]
    sums = probabilities.sum(axis=1)
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > 1e-3:
        return [f"probabilities of sample {worst} sum to {sums[worst]:g}: each row must sum to 1"]
    return []


def _label_faults(labels: Integers, classes: int) -> list[str]:
    if not np.issubdtype(labels.dtype, np.integer):
        return [f"targets of type {labels.dtype} must be whole numbers: pass class indices"]
    outside = (labels < 0) | (labels >= classes)
    if not outside.any():
        return []
    first = int(outside.argmax())
    return [
        f"target {labels[first]} (sample {first}; {int(outside.sum())} in all) is outside [0, {classes}): "
        f"number the classes from 0 or drop those samples"
    ]

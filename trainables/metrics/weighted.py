"""Accuracy, NLL, Brier score and ECE of samples with weights; all other metrics count every sample once."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import METRICS, Floats, Integers, require_probabilities, top_confidence
from trainables.metrics.binning import equal_width_bin, sums_by_bin
from trainables.metrics.evaluate import likelihoods


def weighted_metrics(
    weights: ArrayLike | None,
    probabilities: ArrayLike,
    targets: ArrayLike,
    bins: int = 15,
    logits: ArrayLike | None = None,
) -> dict[str, float]:
    """Return the columns of `WEIGHTED_COLUMNS` for samples with weights, or none without weights.

    Accuracy, NLL and Brier score are Σ_i w_i v_i / Σ_i w_i over the samples' values v, as with scikit-learn's
    `sample_weight`. The ECE is Σ_b (W_b/W)·|mean of r − mean of c| over bins b with weighted means, where W_b/W is the
    bin's share of all weights. Integer weights give the plain metrics of samples that are repeated as often.

    Args:
        weights: weights [N] above 0.
        probabilities: [N, K], rows on the simplex.
        targets: class indices [N].
        bins: number of right-closed equal-width bins, at most N.
        logits: as for `evaluate_probabilities`.

    Raises:
        UnusablePredictions: as for `evaluate_probabilities`.

    Example:
        >>> probabilities = [[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]]
        >>> values = weighted_metrics([1, 1, 1, 3], probabilities, [0, 0, 1, 0], bins=4)
        >>> {name: round(value, 4) for name, value in values.items()}
        {'weighted_accuracy': 0.5, 'weighted_nll': 0.7419, 'weighted_brier': 0.56, 'weighted_ece': 0.3333}
    """
    if weights is None:
        return {}
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    require_probabilities(values, targets, bins)
    labels: Integers = np.asarray(targets, dtype=np.int64)
    shares: Floats = np.asarray(weights, dtype=np.float64) / np.sum(weights, dtype=np.float64)
    confidence, correct = top_confidence(values, labels)
    _, nll, brier, _ = likelihoods(values, labels, logits)
    gaps = sums_by_bin(equal_width_bin(confidence, bins), shares * (confidence - correct), bins)
    measured = (shares @ correct, shares @ nll, shares @ brier, np.abs(gaps).sum())
    return {name: float(value) for name, value in zip(WEIGHTED_COLUMNS, measured, strict=True)}


_HIGHEST = {"accuracy": 1.0, "nll": math.inf, "brier": 2.0, "ece": 1.0}
#: Columns of every evaluation, filled for splits whose samples have weights.
WEIGHTED_COLUMNS = tuple(f"weighted_{name}" for name in _HIGHEST)


def _without_weights(name: str, probabilities: Floats, targets: Integers) -> float:
    """Return NaN: only an evaluation knows the weights, and calls `weighted_metrics`."""
    return math.nan


for _name, _high in _HIGHEST.items():
    _mode: Literal["min", "max"] = "max" if _name == "accuracy" else "min"
    METRICS.add(
        f"weighted_{_name}",
        f"{METRICS[_name].words}, with each sample's weight",
        label=f"weighted {METRICS[_name].words}",
        mode=_mode,
        range=(0, _high),
        unit=METRICS[_name].unit,
        always=True,
        needs="weights of the samples",
    )(partial(_without_weights, _name))

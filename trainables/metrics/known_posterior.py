"""Metrics for data with a known class posterior η (synthetic problems); none of them uses labels."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import METRICS, SMALLEST_PROBABILITY, Floats, UnusablePredictions, require_probabilities
from trainables.metrics.binning import calibration_error


def posterior_metrics(posterior: ArrayLike | None, probabilities: ArrayLike, bins: int = 100) -> dict[str, float]:
    """Return the columns of `POSTERIOR_COLUMNS` for η and q [N, K] (posterior §5.2), or none if η is unknown.

    - `kl_to_posterior` is E[Σ_k η_k ln(η_k/q_k)] in nats, where 0·ln 0 is 0 and an underflowed q_k counts as the
      smallest float64.
    - `true_calibration_error` is E|c − E[η_ŷ | c]|, with c the top confidence and ŷ the predicted class. The inner mean
      is over `bins` equal-mass bins of c, or over single samples if there are fewer samples than bins. Use 100 or more
      samples per bin. Without label noise, it has far less bias than ECE.
    - `confidence_to_posterior_distance` is E|c − η_ŷ|. It is at least the true calibration error, because a calibrated
      model can still mix easy with hard samples.

    Raises:
        UnusablePredictions: either is not on the simplex, or the shapes differ.

    Example:
        >>> eta, q = [[0.7, 0.3], [0.9, 0.1]], [[0.8, 0.2], [0.8, 0.2]]
        >>> {name: round(value, 4) for name, value in posterior_metrics(eta, q, bins=1).items()}
        {'kl_to_posterior': 0.0324, 'true_calibration_error': 0.0, 'confidence_to_posterior_distance': 0.1}
    """
    if posterior is None:
        return {}
    eta: Floats = np.asarray(posterior, dtype=np.float64)
    q: Floats = np.asarray(probabilities, dtype=np.float64)
    if eta.shape != q.shape:
        raise UnusablePredictions(f"posterior of shape {eta.shape} must match probabilities of shape {q.shape}")
    for rows in (eta, q):
        require_probabilities(rows, np.zeros(len(rows), dtype=np.int64), bins=1)  # there are no labels to check
    log_eta, log_q = (np.log(np.maximum(rows, SMALLEST_PROBABILITY)) for rows in (eta, q))
    confidence = q.max(axis=1)
    of_prediction = np.take_along_axis(eta, q.argmax(axis=1)[:, None], axis=1)[:, 0]
    values = (
        float((eta * (log_eta - log_q)).sum(axis=1).mean()),
        calibration_error(confidence, of_prediction, min(bins, len(q)), "equal_mass"),
        float(np.abs(confidence - of_prediction).mean()),
    )
    return dict(zip(POSTERIOR_COLUMNS, values, strict=True))


_COLUMNS = {
    "kl_to_posterior": ("Kullback-Leibler divergence from the true posterior, in nats", math.inf),
    "true_calibration_error": ("calibration error computed from the true posterior instead of labels", 1.0),
    "confidence_to_posterior_distance": ("distance of the confidence from the predicted class's posterior", 1.0),
}
#: Columns of every evaluation, filled for the test split of data sets with a known posterior.
POSTERIOR_COLUMNS = tuple(_COLUMNS)

for _name, (_summary, _high) in _COLUMNS.items():
    METRICS.add(_name, _summary, "posterior §5.2", mode="min", range=(0, _high), always=True, needs="true posterior")(
        lambda probabilities, targets: math.nan
    )

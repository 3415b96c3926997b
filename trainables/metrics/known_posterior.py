"""Metrics for data whose class posterior η is known (synthetic problems): nothing here estimates from labels."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import METRICS, SMALLEST_PROBABILITY, Floats, UnusablePredictions, require_probabilities
from trainables.metrics.binning import calibration_error


def posterior_metrics(posterior: ArrayLike | None, probabilities: ArrayLike, bins: int = 100) -> dict[str, float]:
    """Return the columns of `POSTERIOR_COLUMNS` for η and q [N, K] (posterior §5.2), or nothing where η is not known.

    `kl_to_posterior` is E[Σ_k η_k ln(η_k/q_k)] in nats, where 0·ln 0 is 0 and a q_k that underflowed to 0 counts as the
    smallest float64. `true_calibration_error` is E|c − E[η_ŷ | c]| of the top confidence c, ŷ the predicted class; the
    inner mean is over `bins` equal-mass bins of c, of fewer samples each being a bin of its own: use a large sample,
    100 or more a bin. Labels' noise does not enter, so it has far less bias than ECE.
    `confidence_to_posterior_distance` is E|c − η_ŷ|, at least the true calibration error: a calibrated model may still
    mix easy with hard samples.

    Raises UnusablePredictions when either is not on the simplex or the shapes differ.
    """
    if posterior is None:
        return {}
    eta: Floats = np.asarray(posterior, dtype=np.float64)
    q: Floats = np.asarray(probabilities, dtype=np.float64)
    if eta.shape != q.shape:
        raise UnusablePredictions(f"posterior of shape {eta.shape} must match probabilities of shape {q.shape}")
    for each in (eta, q):
        require_probabilities(each, np.zeros(len(each), dtype=np.int64), bins=1)
    log_eta, log_q = (np.log(np.maximum(each, SMALLEST_PROBABILITY)) for each in (eta, q))
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
    "true_calibration_error": ("calibration error by the true posterior in place of labels", 1.0),
    "confidence_to_posterior_distance": ("distance of the confidence from the predicted class's posterior", 1.0),
}
#: Columns of every evaluation, filled on the test split of data sets that know their posterior.
POSTERIOR_COLUMNS = tuple(_COLUMNS)

for _name, (_summary, _high) in _COLUMNS.items():
    METRICS.add(_name, _summary, "posterior §5.2", range=(0, _high), always=True, needs="true posterior")(
        lambda probabilities, targets: math.nan
    )

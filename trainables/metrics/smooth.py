"""Smooth calibration error: no bins, and no choice of a bandwidth.

    smECE_σ = ∫₀¹ |(1/n) Σ_i (y_i − c_i) K_σ(t, c_i)| dt,   smECE = the σ with smECE_σ = σ,

K_σ the Gaussian kernel reflected at 0 and 1 (Błasiok & Nakkiran 2023, Smooth ECE: principled reliability diagrams via
kernel smoothing, arXiv:2309.12236, definitions 3 to 5). smECE_σ falls as σ grows, so there is one such σ. It is within
constant factors of the distance to the nearest calibrated predictor, and continuous in the predictions, as ECE is not.

Reflected Gaussian smoothing is diffusion on [0, 1] between walls: a cosine transform turns it into a product, so that
the whole search takes some transforms of a grid of CELLS, whatever the number of samples.
"""

from __future__ import annotations

import numpy as np

from trainables.metrics.base import METRICS, Floats, Integers, of_each_class, top_confidence

#: Cells of [0, 1] that residuals are spread over, each linearly over the two cells around its confidence. A cell is a
#: twentieth of a σ of .005, about which well calibrated networks lie on 10,000 samples.
CELLS = 4096


def smooth_calibration_error(confidence: Floats, outcome: Floats) -> float:
    """Return smECE of a confidence [N] in [0, 1] against outcomes [N], 1 or 0, or probabilities."""
    from scipy.fft import dct, idct
    from scipy.optimize import brentq

    place = np.clip(confidence * CELLS - 0.5, 0.0, CELLS - 1.0)
    cell = np.minimum(place.astype(np.int64), CELLS - 2)
    share = place - cell
    residual = (outcome - confidence) / len(confidence)
    spread = np.bincount(cell, weights=(1 - share) * residual, minlength=CELLS)
    spread += np.bincount(cell + 1, weights=share * residual, minlength=CELLS)
    waves = dct(spread, norm="ortho")
    decay = -0.5 * (np.pi * np.arange(CELLS)) ** 2

    def excess(sigma: float) -> float:
        return float(np.abs(idct(waves * np.exp(decay * sigma**2), norm="ortho")).sum()) - sigma

    # rounding leaves 1e-17 of residuals that cancel
    return float(brentq(excess, 0.0, 2.0, xtol=1e-9)) if excess(0.0) > 1e-12 else 0.0


@METRICS.add("smooth_ece", label="smooth ECE", range=(0, 1))
def smooth_ece(probabilities: Floats, targets: Integers) -> float:
    """Calibration error without bins, of the top confidence.

    Return smECE of the top confidence of probabilities [N, K] against targets [N].

    Source: Błasiok & Nakkiran 2023, arXiv:2309.12236.
    """
    return smooth_calibration_error(*top_confidence(probabilities, targets))


@METRICS.add("cw_smooth_ece", label="class-wise smooth ECE", range=(0, 1))
def classwise_smooth_ece(probabilities: Floats, targets: Integers) -> float:
    """Smooth_ece of each class, averaged.

    Return the mean over classes k of smECE of p_k against 1[y = k], for probabilities [N, K] and targets [N].

    Source: Błasiok & Nakkiran 2023, arXiv:2309.12236.
    """
    return float(np.mean(of_each_class(smooth_calibration_error, probabilities, targets)))

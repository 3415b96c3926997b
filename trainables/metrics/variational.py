"""Variational calibration errors: lower bounds from the gain of a recalibration fitted on other samples.

For a norm, E‖f − E[y | f]‖ = sup_g E[s(g(f) − f)ᵀ(y − f)] over functions g of the predictions, where s(d) is the vector
of dual norm 1 with s(d)ᵀd = ‖d‖; for L1 it holds the signs of d (A variational estimator for Lp calibration errors,
2026, arXiv:2602.24230; the authors' package probmetrics computes it). Any g fitted on other samples gives an estimate
whose expectation is at most the error. Overfitting therefore lowers this estimate, whereas it raises binned errors. The
estimate of a calibrated network is 0 on average; single estimates can be negative.

For the top confidence, samples with g below f are overconfident and the others underconfident; the two terms add up to
the error. The paper defines them by the distance from 1/2, which is the same for confidences above 1/2.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from trainables.metrics.base import METRICS, SMALLEST_PROBABILITY, Floats, Integers, softmax64, top_confidence
from trainables.metrics.isotonic import interpolated, isotonic_levels
from trainables.metrics.refinement import FOLDS, folds_of, refinement


def dual_gain(predicted: Floats, recalibrated: Floats, outcome: Floats, norm: float = 1.0) -> Floats:
    """Return s(g − f)ᵀ(y − f) per sample [N], for f, g and y [N, K].

    Args:
        predicted: f.
        recalibrated: g, fitted on other samples.
        outcome: y, one-hot.
        norm: exponent p ≥ 1 of ‖·‖_p.

    Example:
        >>> dual_gain(np.array([[0.9]]), np.array([[0.7]]), np.array([[0.0]])).tolist()  # −1·(0 − 0.9)
        [0.9]
    """
    # the gain of a sample that g does not move is 0; 0/0 would be NaN
    moved = recalibrated - predicted
    length = np.linalg.norm(moved, norm, axis=1, keepdims=True)
    share = np.abs(moved) / np.where(length > 0, length, 1.0)
    gain: Floats = np.einsum("nk,nk->n", np.sign(moved) * share ** (norm - 1), outcome - predicted)
    return gain


def confidence_gains(probabilities: Floats, targets: Integers) -> tuple[Floats, Floats]:
    """Return the gains of a cross-fitted isotonic recalibration from lowering and from raising top confidences, [N]."""
    confidence, correct = top_confidence(probabilities, targets)
    fold, recalibrated = np.arange(len(targets)) % FOLDS, np.empty(len(targets))
    for held_out in range(FOLDS):
        out = fold == held_out
        recalibrated[out] = interpolated(confidence[out], *isotonic_levels(confidence[~out], correct[~out]))
    gain = dual_gain(confidence[:, None], recalibrated[:, None], correct[:, None])
    return np.where(recalibrated < confidence, gain, 0.0), np.where(recalibrated > confidence, gain, 0.0)


def _mean_gain(probabilities: Floats, targets: Integers, sides: slice) -> float:
    if len(targets) < 2 * FOLDS:
        return math.nan
    return float(sum(side.mean() for side in confidence_gains(probabilities, targets)[sides]))


@METRICS.add("variational_error", label="variational error", mode="min", range=(-1, 1))
def variational_error(probabilities: Floats, targets: Integers) -> float:
    """Lower bound of the top confidence's L1 calibration error, without bins: over- and underconfidence.

    Return the mean over samples of sign(g(c) − c)·(r − c), with c the top confidence, r its correctness and g isotonic
    regression on the other four fifths of the samples. Its expectation is at most the L1 error; NaN below ten samples.

    Source: A variational estimator for Lp calibration errors 2026, arXiv:2602.24230.

    Example:
        >>> probabilities, targets = np.array([[0.9, 0.1]] * 20), np.arange(20) % 2  # half of the samples are right
        >>> round(variational_error(probabilities, targets), 4)
        0.4
    """
    return _mean_gain(probabilities, targets, slice(2))


@METRICS.add("overconfidence", mode="min", range=(-1, 1))
def overconfidence(probabilities: Floats, targets: Integers) -> float:
    """The part of variational_error from confidences that are too high.

    Return the mean over samples of 1[g(c) < c]·(c − r), as in `variational_error`.

    Source: A variational estimator for Lp calibration errors 2026, arXiv:2602.24230.

    Example:
        >>> round(overconfidence(np.array([[0.9, 0.1]] * 20), np.arange(20) % 2), 4)
        0.4
    """
    return _mean_gain(probabilities, targets, slice(1))


@METRICS.add("underconfidence", mode="min", range=(-1, 1))
def underconfidence(probabilities: Floats, targets: Integers) -> float:
    """The part of variational_error from confidences that are too low.

    Return the mean over samples of 1[g(c) > c]·(r − c), as in `variational_error`.

    Source: A variational estimator for Lp calibration errors 2026, arXiv:2602.24230.

    Example:
        >>> round(underconfidence(np.array([[0.6, 0.4]] * 20), np.zeros(20, dtype=np.int64)), 4)  # all are right
        0.4
    """
    return _mean_gain(probabilities, targets, slice(1, 2))


@METRICS.add("variational_lp", label="variational Lp error", mode="min", range=(-2, 2))
def variational_lp(probabilities: Floats, targets: Integers, norm: Annotated[float, "[1, inf)"] = 2.0) -> float:
    """Lower bound of the Lp calibration error of all classes at once: the part that temperature scaling reveals.

    Return the mean over samples of s(g − f)ᵀ(y − f), with f the probabilities and g the probabilities after a
    temperature fitted on the other folds. It contains only errors that a temperature corrects; NaN with fewer samples
    than folds.

    Source: A variational estimator for Lp calibration errors 2026, arXiv:2602.24230.

    Args:
        norm: below 1 it is no norm [the paper's L2].

    Example:
        >>> probabilities, targets = np.array([[0.9, 0.1]] * 20), np.arange(20) % 2
        >>> round(variational_lp(probabilities, targets), 2)  # √2·0.4
        0.57
    """
    # logarithms of probabilities are logits up to a constant, which no temperature changes
    logits = np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))
    temperatures = refinement(logits, targets).temperatures
    if not temperatures:
        return math.nan
    scaled = softmax64(logits / np.array(temperatures)[folds_of(targets)][:, None])
    one_hot = (np.arange(probabilities.shape[1]) == targets[:, None]).astype(np.float64)
    return float(dual_gain(probabilities, scaled, one_hot, norm).mean())

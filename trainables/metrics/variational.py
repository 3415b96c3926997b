"""Variational calibration errors: what a recalibration that has not seen a sample would gain there, a lower bound.

For a norm, E‖f − E[y | f]‖ = sup_g E[s(g(f) − f)ᵀ(y − f)] over functions g of the predictions, where s(d) is the vector
of dual norm 1 with s(d)ᵀd = ‖d‖: of L1 the signs of d (A variational estimator for Lp calibration errors, 2026,
arXiv:2602.24230; its authors' package probmetrics computes it). Any g fitted on other samples gives an
estimate whose expectation is at most the error, so that overfitting lowers it, where binned errors rise. A network that
is calibrated has one of 0 on average; single estimates may be negative.

Of the top confidence, samples with g below f are over-confident and the others under-confident: two terms that add up.
The paper speaks of distance from 1/2 instead: its words are these for confidences above 1/2.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np

from trainables.metrics.base import METRICS, SMALLEST_PROBABILITY, Floats, Integers, softmax64, top_confidence
from trainables.metrics.binning import isotonic_levels
from trainables.metrics.refinement import FOLDS, folds_of, refinement


def dual_gain(predicted: Floats, recalibrated: Floats, outcome: Floats, norm: float = 1.0) -> Floats:
    """Return s(g − f)ᵀ(y − f) of each sample [N]; the arguments f, g and y are [N, K].

    Args:
        predicted: f.
        recalibrated: g, fitted on other samples.
        outcome: y, one-hot.
        norm: p ≥ 1 of ‖·‖_p.
    """
    moved = recalibrated - predicted
    length = np.linalg.norm(moved, norm, axis=1, keepdims=True)
    share = np.abs(moved) / np.where(length > 0, length, 1.0)
    gain: Floats = np.einsum("nk,nk->n", np.sign(moved) * share ** (norm - 1), outcome - predicted)
    return gain


def confidence_gains(probabilities: Floats, targets: Integers) -> tuple[Floats, Floats]:
    """Return what a cross-fitted isotonic recalibration gains by lowering and by raising top confidences, each [N]."""
    confidence, correct = top_confidence(probabilities, targets)
    fold, recalibrated = np.arange(len(targets)) % FOLDS, np.empty(len(targets))
    for each in range(FOLDS):
        out = fold == each
        recalibrated[out] = np.interp(confidence[out], *isotonic_levels(confidence[~out], correct[~out]))
    gain = dual_gain(confidence[:, None], recalibrated[:, None], correct[:, None])
    return np.where(recalibrated < confidence, gain, 0.0), np.where(recalibrated > confidence, gain, 0.0)


def _mean_gain(probabilities: Floats, targets: Integers, sides: slice) -> float:
    if len(targets) < 2 * FOLDS:
        return math.nan
    return float(sum(side.mean() for side in confidence_gains(probabilities, targets)[sides]))


@METRICS.add("variational_error", label="variational error", range=(-1, 1))
def variational_error(probabilities: Floats, targets: Integers) -> float:
    """Lower bound of the top confidence's L1 calibration error, without bins: over- and underconfidence.

    Return the mean over samples of sign(g(c) − c)·(r − c), c the top confidence, r whether it is right and g isotonic
    regression on the other four fifths. At most the L1 error in expectation; NaN below ten samples.

    Source: A variational estimator for Lp calibration errors 2026, arXiv:2602.24230.
    """
    return _mean_gain(probabilities, targets, slice(2))


@METRICS.add("overconfidence", range=(-1, 1))
def overconfidence(probabilities: Floats, targets: Integers) -> float:
    """The part of variational_error from confidences that are too high.

    Return the mean over samples of 1[g(c) < c]·(c − r), as in `variational_error`.

    Source: A variational estimator for Lp calibration errors 2026, arXiv:2602.24230.
    """
    return _mean_gain(probabilities, targets, slice(1))


@METRICS.add("underconfidence", range=(-1, 1))
def underconfidence(probabilities: Floats, targets: Integers) -> float:
    """The part of variational_error from confidences that are too low.

    Return the mean over samples of 1[g(c) > c]·(r − c), as in `variational_error`.

    Source: A variational estimator for Lp calibration errors 2026, arXiv:2602.24230.
    """
    return _mean_gain(probabilities, targets, slice(1, 2))


@METRICS.add("variational_lp", label="variational Lp error", range=(-2, 2))
def variational_lp(probabilities: Floats, targets: Integers, norm: Annotated[float, "[1, inf)"] = 2.0) -> float:
    """Lower bound of the Lp calibration error of all classes at once: what temperature scaling shows of it.

    Return the mean over samples of s(g − f)ᵀ(y − f), f the probabilities and g these after a temperature that was
    fitted on the other folds. It sees what a temperature repairs; NaN with fewer samples than folds.

    Source: A variational estimator for Lp calibration errors 2026, arXiv:2602.24230.

    Args:
        norm: below 1 it is no norm [the paper's L2].
    """
    logits = np.log(np.maximum(probabilities, SMALLEST_PROBABILITY))
    temperatures = refinement(logits, targets).temperatures
    if not temperatures:
        return math.nan
    scaled = softmax64(logits / np.array(temperatures)[folds_of(targets)][:, None])
    one_hot = (np.arange(probabilities.shape[1]) == targets[:, None]).astype(np.float64)
    return float(dual_gain(probabilities, scaled, one_hot, norm).mean())

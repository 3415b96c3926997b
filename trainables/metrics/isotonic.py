"""Reliability diagrams by isotonic regression (CORP), with consistency bands and a decomposition of the Brier score.

The diagram's curve is the isotonic regression of what happened on the confidence: the best calibrated non-decreasing
function of it, with no bins to choose and the least Brier score of all such functions (Dimitriadis, Gneiting & Jordan
2021, Stable reliability diagrams for probabilistic classifiers, PNAS 118). With S the Brier score of the confidence,
S_C that of the curve and S_R that of the plain frequency,

    S = MCB − DSC + UNC,   MCB = S − S_C,   DSC = S_R − S_C,   UNC = S_R:

miscalibration, discrimination and uncertainty, the first two never negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.probabilities import Floats, Integers

BAND_LEVEL = 0.9
REPETITIONS = 100
"""Level and resamples of the band, those of the paper's figures."""

BAND_POINTS = 60


@dataclass(frozen=True)
class Decomposition:
    """The Brier score of a confidence in parts: `score` = `miscalibration` − `discrimination` + `uncertainty`."""

    score: float
    miscalibration: float
    discrimination: float
    uncertainty: float


@dataclass(frozen=True)
class Band:
    """Between which frequencies the curve of a calibrated confidence lies, point by point.

    Attributes:
        confidence: [M] ascending.
        lower, upper: [M].
    """

    confidence: Floats
    lower: Floats
    upper: Floats


def isotonic_levels(score: Floats, outcome: ArrayLike) -> tuple[Floats, Floats]:
    """Return where isotonic regression of `outcome` [N] on `score` [N] bends: scores, ascending, and fitted values.

    Equal scores are one point. Points between two of the same value are left out.
    """
    order = np.argsort(score, kind="stable")
    ascending, starts, counts = _grouped(score[order])
    fitted = _fitted(np.asarray(outcome, dtype=np.float64)[order], starts, counts)
    bends = np.ones(len(fitted), dtype=bool)
    bends[1:-1] = (fitted[1:-1] != fitted[:-2]) | (fitted[1:-1] != fitted[2:])
    return ascending[bends], fitted[bends]


def decomposition(confidence: Floats, outcome: Floats) -> Decomposition:
    """Return the Brier score of a confidence [N] against outcomes [N], 0 or 1, and its parts."""
    recalibrated = np.interp(confidence, *isotonic_levels(confidence, outcome))
    score = float(((confidence - outcome) ** 2).mean())
    best = float(((recalibrated - outcome) ** 2).mean())
    plain = float(((outcome.mean() - outcome) ** 2).mean())
    return Decomposition(score, score - best, plain - best, plain)


def consistency_band(
    confidence: Floats,
    same: Integers | None = None,
    level: float = BAND_LEVEL,
    repetitions: int = REPETITIONS,
    seed: int = 0,
) -> Band:
    """Return the band in which the curve lies, at each confidence with probability `level`, if the confidence is right.

    Outcomes are drawn with the confidences [N] as probabilities, and each draw's curve is computed; the band is between
    its percentiles. Samples with the same number in `same` [N], as one image that several networks see, share their
    random number: what makes one network right is then likely to make the others right, as it is in truth.
    """
    order = np.argsort(confidence, kind="stable")
    ascending, starts, counts = _grouped(confidence[order])
    drawn_for = np.arange(len(order)) if same is None else np.unique(same, return_inverse=True)[1]
    drawn_for, right_below = drawn_for[order], confidence[order]
    at = np.quantile(confidence, np.linspace(0, 1, BAND_POINTS), method="nearest")
    at = np.unique(at)
    rng = np.random.default_rng(seed)
    curves = np.empty((repetitions, len(at)))
    for curve in curves:
        outcome = rng.random(int(drawn_for.max()) + 1)[drawn_for] < right_below
        curve[:] = np.interp(at, ascending, _fitted(outcome.astype(np.float64), starts, counts))
    lower, upper = np.quantile(curves, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Band(at, lower, upper)


def _grouped(ascending: Floats) -> tuple[Floats, Integers, Floats]:
    """Return the different values of an ascending array, where each begins, and how often it occurs."""
    starts = np.flatnonzero(np.concatenate(([True], ascending[1:] != ascending[:-1])))
    return ascending[starts], starts, np.diff(starts, append=len(ascending)).astype(np.float64)


def _fitted(outcome: Floats, starts: Integers, counts: Floats) -> Floats:
    """Return isotonic regression's value for each group of sorted outcomes [N]."""
    from scipy.optimize import isotonic_regression

    means = np.add.reduceat(outcome, starts) / counts
    return np.asarray(isotonic_regression(means, weights=counts).x, dtype=np.float64)

"""Two classes from one number per sample, and calibration of the probability of class 1, as for clinical models.

With more classes, these metrics judge the top confidence.

Reviewers of prediction models ask for slope and intercept besides a reliability diagram (Van Calster et al. 2019,
Calibration: the Achilles heel of predictive analytics), and for a test that needs no bins (Spiegelhalter 1986).
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import METRICS, SMALLEST_PROBABILITY, Floats, Integers, top_confidence
from trainables.metrics.binning import equal_width_bin, norm_of_gaps, sums_by_bin

#: Newton steps of a logistic regression with two parameters; ten suffice if the likelihood has a maximum. It has none
#: if the predictions separate the classes: each step then adds about 1 to the line without end.
STEPS = 50


def as_two_classes(numbers: ArrayLike, *, probabilities: bool) -> Floats:
    """Return two columns [N, 2] for one number per sample, [N] or [N, 1], that belongs to class 1.

    A logit z becomes the logits (0, z), whose softmax is (1 − σ(z), σ(z)). A probability p becomes (1 − p, p). Own
    training loops and `sweeper import` share this rule.

    Example:
        >>> as_two_classes([2.0, -1.0], probabilities=False).tolist()
        [[0.0, 2.0], [0.0, -1.0]]
        >>> as_two_classes([[0.25]], probabilities=True).tolist()
        [[0.75, 0.25]]
    """
    one = np.asarray(numbers, np.float64).reshape(-1)
    return np.stack([1 - one if probabilities else np.zeros_like(one), one], axis=1)


def judged(probabilities: Floats, targets: Integers) -> tuple[Floats, Floats]:
    """Return the probability [N] that is judged, and whether its event happened [N], 0 or 1.

    With two classes, these are p_1 and y = 1; with more, the largest probability and whether its class is right.

    Example:
        >>> judged(np.array([[0.8, 0.2], [0.4, 0.6]]), np.array([0, 1]))
        (array([0.2, 0.6]), array([0., 1.]))
    """
    if probabilities.shape[1] == 2:
        return probabilities[:, 1], (targets == 1).astype(np.float64)
    return top_confidence(probabilities, targets)


@METRICS.add("ece_positive", label="ECE of class 1", mode="min", range=(0, 1))
def ece_positive(probabilities: Floats, targets: Integers, bins: Annotated[int, "[1, 1000]"] = 15) -> float:
    """Expected calibration error of the probability of class 1 against y = 1, for two classes.

    Bins have equal width over p_1 instead of over the larger probability, as in the ECE of torchmetrics' binary
    metric and of clinical studies. With more classes, class 1 is judged against the rest.

    Source: Naeini et al. 2015, Obtaining well calibrated probabilities using Bayesian binning.

    Args:
        bins: bins of equal width over [0, 1] [15 as in every other ECE here].

    Example:
        >>> round(ece_positive(np.array([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.2, 0.8]]), np.array([0, 0, 1, 0])), 3)
        0.2
    """
    p = probabilities[:, 1]
    index = equal_width_bin(p, bins)
    return float(norm_of_gaps(sums_by_bin(index, p - (targets == 1), bins), np.bincount(index, minlength=bins), "mean"))


def _fitted_line(p: Floats, happened: Floats, slope: float | None = None) -> tuple[float, float]:
    """Return a and b of logit P(happened) = a + b·logit p by maximum likelihood, NaN if there is no maximum.

    A given `slope` is kept, and only the intercept is fitted. Newton's method maximises a concave function.
    """
    x = np.log(np.maximum(p, SMALLEST_PROBABILITY)) - np.log(np.maximum(1 - p, SMALLEST_PROBABILITY))
    design = np.stack([np.ones_like(x)] if slope is not None else [np.ones_like(x), x])
    offset, line = (0.0 if slope is None else slope) * x, np.zeros(len(design))
    if happened.min() == happened.max():
        return math.nan, math.nan
    for _ in range(STEPS):
        expected = 1 / (1 + np.exp(-np.clip(offset + line @ design, -700, 700)))  # exp overflows at 710
        information = (design * (expected * (1 - expected))) @ design.T
        try:
            step = np.linalg.solve(information, design @ (happened - expected))
        except np.linalg.LinAlgError:
            return math.nan, math.nan
        line += step
        if np.abs(step).max() < 1e-10:
            break
    else:
        return math.nan, math.nan
    return (float(line[0]), float(line[1])) if slope is None else (float(line[0]), slope)


@METRICS.add("calibration_slope", mode=None, range=(-math.inf, math.inf))
def calibration_slope(probabilities: Floats, targets: Integers) -> float:
    """Slope b of logit P(y) = a + b·logit p: 1 if predictions are calibrated, below 1 if they are too extreme.

    NaN if the predictions separate the classes.

    Source: Cox 1958, Two further applications of a model for binary regression; Van Calster et al. 2019.

    Example:
        >>> p = np.repeat([0.2, 0.8], 100)
        >>> y = np.array([1] * 20 + [0] * 80 + [1] * 80 + [0] * 20)
        >>> round(calibration_slope(np.stack([1 - p, p], axis=1), y), 6)
        1.0
    """
    return _fitted_line(*judged(probabilities, targets))[1]


@METRICS.add("calibration_intercept", mode=None, range=(-math.inf, math.inf))
def calibration_intercept(probabilities: Floats, targets: Integers) -> float:
    """Intercept a of logit P(y) = a + logit p: 0 if predictions are right on average, below 0 if they are too high.

    Source: Cox 1958, Two further applications of a model for binary regression; Van Calster et al. 2019.

    Example:
        >>> p = np.full(100, 0.5)
        >>> round(calibration_intercept(np.stack([1 - p, p], axis=1), np.array([1] * 75 + [0] * 25)), 4)
        1.0986
    """
    return _fitted_line(*judged(probabilities, targets), slope=1.0)[0]


@METRICS.add("spiegelhalter_z", label="Spiegelhalter’s Z", mode=None, range=(-math.inf, math.inf))
def spiegelhalter_z(probabilities: Floats, targets: Integers) -> float:
    """Spiegelhalter's Z: standard normal if the probabilities are calibrated; |Z| > 1.96 shows that they are not.

    Return Σ (y − p)(1 − 2p) / √(Σ (1 − 2p)² p(1 − p)); NaN where every p is 0, 1/2 or 1.

    Source: Spiegelhalter 1986, Probabilistic prediction in patient management and clinical trials.

    Example:
        >>> p = np.array([0.1, 0.1, 0.9, 0.9])
        >>> round(spiegelhalter_z(np.stack([1 - p, p], axis=1), np.array([0, 1, 1, 1])), 4)
        1.0
    """
    p, happened = judged(probabilities, targets)
    spread = float(np.sqrt(((1 - 2 * p) ** 2 * p * (1 - p)).sum()))
    return float(((happened - p) * (1 - 2 * p)).sum()) / spread if spread > 0 else math.nan


def _cumulative_gaps(probabilities: Floats, targets: Integers) -> Floats:
    """Return (1/N) Σ_{i ≤ k} (y_i − p_i) [N + 1] over samples sorted by p; ties are one step. It begins with 0."""
    p, happened = judged(probabilities, targets)
    values, places = np.unique(p, return_inverse=True)
    steps = np.bincount(places, weights=happened - p, minlength=len(values))
    return np.concatenate([[0.0], steps.cumsum() / len(p)])


@METRICS.add("ks_error", label="KS calibration error", mode="min", range=(0, 1))
def ks_error(probabilities: Floats, targets: Integers) -> float:
    """Kolmogorov–Smirnov calibration error: the largest gap of cumulative outcomes and probabilities; no bins.

    Source: Gupta et al. 2021, Calibration of neural networks using splines, Eq. (4).

    Example:
        >>> p = np.array([0.1, 0.2, 0.9])
        >>> round(ks_error(np.stack([1 - p, p], axis=1), np.array([0, 0, 1])), 4)
        0.1
    """
    return float(np.abs(_cumulative_gaps(probabilities, targets)).max())


@METRICS.add("kuiper_error", label="Kuiper calibration error", mode="min", range=(0, 1))
def kuiper_error(probabilities: Floats, targets: Integers) -> float:
    """Kuiper calibration error: the largest minus the smallest cumulative gap of outcomes and probabilities; no bins.

    Source: Arrieta-Ibarra et al. 2022, Metrics of calibration for probabilistic predictions, JMLR 23.

    Example:
        >>> p = np.array([0.4, 0.4, 0.6, 0.6])
        >>> round(kuiper_error(np.stack([1 - p, p], axis=1), np.array([0, 0, 1, 1])), 4)
        0.2
    """
    return float(np.ptp(_cumulative_gaps(probabilities, targets)))

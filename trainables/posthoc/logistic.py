"""Logistic calibration of each class against the rest: Platt scaling, beta and spline calibration, scaling-binning.

    q_k = σ(θ_k · x(s_k)),   s_k = log p_k − log(1 − p_k)

The features x of the log-odds s_k depend on the method:

- 1 and s: Platt scaling (Platt 1999, Probabilistic outputs for support vector machines);
- 1, log p and −log(1 − p), the last two with weights ≥ 0: beta calibration (Kull, Silva Filho & Flach 2017, Beta
  calibration, AISTATS), which can correct one end of the scale more than the other;
- natural cubic splines: spline calibration (Lucena 2018, Spline-based probability calibration, arXiv:1809.07751).
  Lucena has many knots and a cross-validated penalty; here five knots take the penalty's place.

Each θ_k minimises the NLL of the class against the rest, with Platt's targets: (N₊ + 1)/(N₊ + 2) for the N₊ samples of
the class and 1/(N₋ + 2) for the others, as if there were one more sample of either label. They bound θ_k if a class is
separated from the rest or has no sample. Kull et al. and Lucena do without; with few samples their fits are worse, and
infinitely so if a class is separated. Rows are then normalised. With two classes there is one map. With more, every
sample counts in several maps; in simulations with ten classes their error was that of half the parameters, which is
what `PosthocMethod.free` states.

Log-odds are computed from probabilities between 1e-13 and 1 − 1e-13, so that a probability of 0 stays finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Booleans, Floats, softmax64
from trainables.metrics.binning import Bins
from trainables.posthoc.base import POSTHOC, validation_data
from trainables.posthoc.one_vs_rest import (
    HISTOGRAM_PARAMETERS,
    HistogramCalibrator,
    Mix,
    OneVsRestCalibrator,
    binned,
    log_odds,
    uniform_share,
)

#: Quantiles of the knots (Harrell 2015, Regression modeling strategies, Table 2.3).
QUANTILES = (0.05, 0.275, 0.5, 0.725, 0.95)

#: Knots that are closer than this share of their range are one knot.
CLOSE = 1e-3

#: Function from log-odds [N] to features [N, F].
Features = Callable[[Floats], Floats]


class LogisticCalibrator(OneVsRestCalibrator):
    """σ(θ_k · x(s_k)) of each class, normalised.

    Attributes:
        weights: θ_k of each class, [F] each; of class 1 alone if there are two classes.
    """

    def __init__(
        self, name: str, classes: int, fits: Sequence[tuple[Features, Floats]], parameters: Mapping[str, float]
    ) -> None:
        """Store the features and weights of each class."""
        super().__init__(name, parameters, classes)
        self._features, self.weights = [features for features, _ in fits], [weights for _, weights in fits]

    def mapped(self, probabilities: Floats) -> Floats:
        """Return σ(θ_k · x(s_k)) of each class [N, K] at its probability [N, K]."""
        odds = log_odds(probabilities)[:, -len(self.weights) :]
        maps = enumerate(zip(self._features, self.weights, strict=True))
        columns = [_sigmoid(features(odds[:, k]) @ weights) for k, (features, weights) in maps]
        return np.stack(columns if len(columns) > 1 else [1 - columns[0], columns[0]], axis=1)


def linear(odds: Floats) -> Floats:
    """Return 1 and s of log-odds s [N]."""
    return np.stack([np.ones_like(odds), odds], axis=1)


def log_probabilities(odds: Floats) -> Floats:
    """Return 1, log p and −log(1 − p) of log-odds [N]."""
    return np.stack([np.ones_like(odds), -np.logaddexp(0, -odds), np.logaddexp(0, odds)], axis=1)


def natural_spline(odds: Floats, outcome: Booleans) -> Features:
    """Return the cardinal natural cubic splines with knots at quantiles of log-odds [N]; linear beyond the knots."""
    # Class and rest weigh the same: of many classes, quantiles of all samples would say nothing about the class itself.
    sides = [np.quantile(side, np.linspace(0, 1, 101)) for side in (odds[outcome], odds[~outcome]) if len(side)]
    knots = np.quantile(np.concatenate(sides), QUANTILES)
    knots = knots[np.diff(knots, prepend=-np.inf) > CLOSE * np.ptp(knots)]
    if len(knots) == 1:
        return linear
    return partial(natural_cubics, knots=knots)


def natural_cubics(odds: Floats, knots: Floats) -> Floats:
    """Return the cardinal natural cubic splines with these knots [F] at log-odds [N], as [N, F]."""
    from scipy.interpolate import CubicSpline

    spline = CubicSpline(knots, np.eye(len(knots)), bc_type="natural")
    inside = np.clip(odds, knots[0], knots[-1])
    return np.asarray(spline(inside) + (odds - inside)[:, None] * spline(inside, 1))


@POSTHOC.add("platt", label="Platt scaling", columns=("at_bound",), free=lambda k, parameters: k)
def fit_platt(logits: ArrayLike, targets: ArrayLike) -> LogisticCalibrator:
    """A logistic regression of each class's log-odds, normalised.

    Fit Platt scaling of each class against the rest, σ(a s + b), on logits [N, K] and targets [N].

    The map is that of scikit-learn's `method="sigmoid"` for the log-odds.

    Source: Platt 1999, section 2.2; Zadrozny & Elkan 2002 for many classes.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_platt(logits, [0, 0, 1, 1, 1])([[2.0, 0.0]]).round(2)
        array([[0.59, 0.41]])

    Raises:
        PosthocUnavailable: unusable validation data.
    """
    return _fit("platt", logits, targets, lambda odds, outcome: linear)


@POSTHOC.add("beta", label="beta calibration", columns=("at_bound",), free=lambda k, parameters: 1.5 * k)
def fit_beta(logits: ArrayLike, targets: ArrayLike) -> LogisticCalibrator:
    """A logistic regression of each class's log p and log(1 − p), normalised.

    Fit beta calibration of each class against the rest, σ(a log p − b log(1 − p) + c) with a, b ≥ 0, on logits [N, K]
    and targets [N].

    Source: Kull, Silva Filho & Flach 2017, Eq. 6 and section 4.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_beta(logits, [0, 0, 1, 1, 1])([[2.0, 0.0]]).round(2)
        array([[0.59, 0.41]])

    Raises:
        PosthocUnavailable: unusable validation data.
    """
    return _fit(
        "beta", logits, targets, lambda odds, outcome: log_probabilities, bounds=((None, None), (0, None), (0, None))
    )


@POSTHOC.add("spline", label="spline calibration", columns=("at_bound",), free=lambda k, parameters: 2.5 * k)
def fit_spline(logits: ArrayLike, targets: ArrayLike) -> LogisticCalibrator:
    """A logistic regression of natural cubic splines of each class's log-odds, normalised.

    Fit spline calibration of each class against the rest on logits [N, K] and targets [N]: five knots at quantiles of
    the log-odds, class and rest weighing the same, and straight lines beyond them. The map need not be monotone.

    Source: Lucena 2018, arXiv:1809.07751; Harrell 2015, section 2.4.5, for the knots.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_spline(logits, [0, 0, 1, 1, 1])([[2.0, 0.0]]).round(2)
        array([[0.75, 0.25]])

    Raises:
        PosthocUnavailable: unusable validation data.
    """
    return _fit("spline", logits, targets, natural_spline)


@POSTHOC.add("scaling_binning", columns=HISTOGRAM_PARAMETERS, free=lambda k, parameters: k)
def fit_scaling_binning(
    logits: ArrayLike, targets: ArrayLike, *, bins: Bins = 15, mix: Mix = True
) -> HistogramCalibrator:
    """Platt scaling, averaged in equal-mass bins of each class.

    Fit the scaling-binning calibrator on logits [N, K] and targets [N]. The values of a bin vary less than the
    frequencies of histogram binning, and the calibration error of a binned output can be estimated. As in the authors'
    experiments, the same samples fit the map and the bins.

    Source: Kumar, Liang & Ma 2019, Verified uncertainty calibration, arXiv:1909.10155, section 4.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> fit_scaling_binning(logits, [0, 0, 1, 1, 1], bins=2)([[2.0, 0.0]]).round(2)
        array([[0.6, 0.4]])

    Args:
        logits: validation logits [N, K].
        targets: class indices [N].
        bins: number of bins per class, at most N.
        mix: mix in 1/(N + 1) of the uniform distribution.

    Raises:
        PosthocUnavailable: unusable validation data, or fewer samples than bins.
    """
    values, labels = validation_data(logits, targets, bins)
    probabilities, scaling = softmax64(values), fit_platt(values, labels)
    edges, means, filled = binned(probabilities, scaling.mapped(probabilities), bins, "equal_mass")
    parameters = {"filled_bins": filled, "uniform": uniform_share(labels, mix), **scaling.parameters}
    return HistogramCalibrator("scaling_binning", edges, means, parameters)


def _fit(
    name: str,
    logits: ArrayLike,
    targets: ArrayLike,
    features_of: Callable[[Floats, Booleans], Features],
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
) -> LogisticCalibrator:
    values, labels = validation_data(logits, targets)
    samples, classes = values.shape
    odds, fits = log_odds(softmax64(values)), []
    for k in range(classes) if classes > 2 else [1]:
        own = labels == k
        features, positive = features_of(odds[:, k], own), int(own.sum())
        targets = np.where(own, (positive + 1) / (positive + 2), 1 / (samples - positive + 2))
        fits.append((features, _least_nll(features(odds[:, k]), targets, bounds)))
    return LogisticCalibrator(name, classes, fits, {"at_bound": len(np.unique(labels)) < classes})


def _sigmoid(scores: Floats) -> Floats:
    return np.exp(-np.logaddexp(0, -scores))


def _least_nll(design: Floats, outcome: Floats, bounds: Sequence[tuple[float | None, float | None]] | None) -> Floats:
    """Return the θ [F] with the smallest mean NLL of σ(design θ), for features [N, F] and outcomes in [0, 1] [N]."""
    from scipy.optimize import minimize

    scale = np.sqrt((design**2).mean(axis=0)) + np.finfo(np.float64).tiny
    scaled = design / scale

    def loss(weights: Floats) -> tuple[float, Floats]:
        scores = scaled @ weights
        value = float((np.logaddexp(0, scores) - outcome * scores).mean())
        return value, scaled.T @ (_sigmoid(scores) - outcome) / len(outcome)

    options = {"maxiter": 1000, "ftol": 1e-13, "gtol": 1e-8}
    start = np.zeros(design.shape[1])
    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x / scale)

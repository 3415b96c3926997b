"""Temperature scaling: softmax(z/T), one T > 0 chosen on validation data by NLL, ECE or the focal loss."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, Integers, log_softmax64, softmax64
from trainables.metrics.binning import Bins, Scheme, calibration_error
from trainables.posthoc.base import POSTHOC, PosthocUnavailable, validation_data
from trainables.posthoc.focal_map import FocalTemperatureCalibrator, focal_temperature_layer, log_complement

Objective = Literal["nll", "nll_on_grid", "ece", "focal"]

#: Temperature grids by name, computed as i/10 and i/100: adding up a step drifts off the grid.
TEMPERATURE_GRIDS: dict[str, Floats] = {
    "mukhoti": np.arange(1, 101) / 10.0,  # .1 … 10 (released code of mukhoti)
    "properness": np.arange(1, 501) / 100.0,  # .01 … 5 (properness §5.1)
}

#: The search covers T from scale/1e4 to scale·1e4, `logit_scale` being the logits' scale: beyond that range softmax is
#: one-hot or uniform.
BOUND_RATIO = 1e4

#: The Newton search stops after a step of log T below this: the method squares the error, so the next step would only
#: be rounding.
SMALL_STEP = 1e-8

#: Accuracy of log T.
ROUNDING = 1e-13

#: Enough bisections to shrink the bracket to rounding; a fit takes about ten steps.
MOST_STEPS = 200

#: Objective values this close count as tied, and the smallest temperature wins. Rounding alone changes values by 1e-16.
TIE = 1e-12


def pseudo_count(samples: int) -> float:
    """Return the smoothing share 1/(N + 1) for targets that do not determine a fit.

    The smoothed target (1 − ε) e_y + ε/K, ε = 1/(N + 1), adds one sample that belongs equally to all K classes. Platt
    1999 (Probabilistic outputs for support vector machines, §2.2) smooths two classes similarly, with one pseudo-count
    each: (N₊ + 1)/(N₊ + 2). Berta, Holzmüller, Jordan & Bach 2025 (Rethinking early stopping: refine, then calibrate,
    arXiv:2501.19195) mix a uniform share of this size into calibrated probabilities.
    """
    return 1.0 / (samples + 1)


def logit_scale(logits: Floats) -> float:
    """Return the root mean square of logits [N, K] about their row means, or 1 if all logits are equal."""
    centred = logits - logits.mean(axis=1, keepdims=True)
    largest = float(np.abs(centred).max())
    if largest == 0.0:
        return 1.0
    # Dividing by the largest first keeps the squares of huge logits finite.
    return largest * math.sqrt(float(np.mean((centred / largest) ** 2)))


def focal_value(
    logits: Floats, targets: Integers, temperature: float, gamma: float = 0.0, smoothing: float = 0.0
) -> float:
    """Return the mean focal loss, in nats, of softmax(z/T) for z [N, K]; γ = 0 is the NLL.

    A share `smoothing` of every target is spread over all classes.
    """
    log_p = log_softmax64(logits / temperature)
    losses = -log_p if gamma == 0.0 else -np.exp(gamma * log_complement(log_p)) * log_p
    of_target = np.take_along_axis(losses, targets[:, None], axis=1)
    return float((1 - smoothing) * of_target.mean() + (smoothing * losses.mean() if smoothing else 0.0))


def temperature_by_nll(logits: Floats, targets: Integers) -> dict[str, float]:
    """Return `temperature`, `converged` and `at_bound` for the T that minimises the NLL of logits [N, K].

    The NLL is convex in β = 1/T, so its slope has one sign change. Newton's method in log T finds it, and bisects the
    bracket if a step would leave it. It stops when steps are below 1e-8, because the squares of such steps are below
    rounding. The NLL falls all the way to T → 0 if every sample is right, and to T → ∞ if the logits point the wrong
    way; `at_bound` flags both. The T returned then minimises the NLL on smoothed targets (`pseudo_count`), or is the
    bound if these have no minimum either.

    Source: Guo et al. 2017, arXiv:1706.04599, §4.2.

    Example:
        >>> logits = np.array([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
        >>> temperature_by_nll(logits, np.array([0, 0, 1, 1, 1]))["temperature"]
        0.906...
    """
    # Subtract z_y first. Otherwise terms would cancel where all samples are right and every term is tiny.
    margins = logits - np.take_along_axis(logits, targets[:, None], axis=1)
    pull = float(margins.mean(axis=1).mean()) * pseudo_count(len(targets))
    # The largest margin is taken out of the exponent, so that no exp overflows for small T.
    largest = margins.max(axis=1)
    margins -= largest[:, None]
    scale = math.log(logit_scale(logits))
    log_t, converged, at_bound = _least_nll(margins, largest, scale, 0.0)
    if at_bound:
        log_t, converged, _ = _least_nll(margins, largest, scale, pull)
        log_t = log_t if pull else 0.0  # equal logits: every T is as good as 1
    return {"temperature": math.exp(log_t), "converged": float(converged), "at_bound": float(at_bound)}


def _least_nll(margins: Floats, largest: Floats, scale: float, pull: float) -> tuple[float, bool, bool]:
    """Return log T of the least NLL, whether the search converged, and whether it ended at a bound.

    Args:
        margins: margins [N, K] as in `_nll_slope`.
        largest: largest margins [N] as in `_nll_slope`.
        scale: logarithm of `logit_scale`.
        pull: amount subtracted from the slope because of smoothed targets; 0 without smoothing.
    """
    low, high = (scale + side * math.log(BOUND_RATIO) for side in (-1, 1))
    falls, rises = (_nll_slope(margins, largest, at)[0] - pull for at in (low, high))
    if falls <= 0.0 or rises >= 0.0:
        return (low if falls <= 0.0 else high), True, True
    # The search starts at T = 1, the temperature of a calibrated network, or at the nearer end of the bracket.
    log_t = min(max(0.0, low), high)
    for _ in range(MOST_STEPS):
        slope, curvature = _nll_slope(margins, largest, log_t)
        slope -= pull
        if slope == 0.0:
            return log_t, True, False
        low, high = (log_t, high) if slope > 0.0 else (low, log_t)
        # Curvature underflows to 0 far from the minimum: bisection then replaces the step.
        step = log_t + slope / curvature if curvature else math.inf
        inside = low - ROUNDING <= step <= high + ROUNDING
        step = step if inside else (low + high) / 2
        moved, log_t = abs(step - log_t), step
        # Bisection only halves the error, so a bisection must reach the full accuracy; a Newton step can stop earlier.
        if moved <= (SMALL_STEP if inside else ROUNDING):
            return log_t, True, False
    return log_t, False, False


def _nll_slope(margins: Floats, largest: Floats, log_t: float) -> tuple[float, float]:
    """Return the slope of the NLL by β = 1/T, and minus that slope's derivative by log T, at T = exp(log_t).

    Args:
        margins: z_k − z_y minus its largest value per sample [N, K].
        largest: subtracted largest values [N].
        log_t: logarithm of T.
    """
    inverse = float(np.exp(-log_t))
    weights = np.exp(margins * inverse)
    total = weights.sum(axis=1)
    first = np.einsum("nk,nk->n", weights, margins) / total
    weights *= margins
    second = np.einsum("nk,nk->n", weights, margins) / total
    return float((first + largest).mean()), inverse * float((second - first**2).mean())


def temperature_by_focal(logits: Floats, targets: Integers, gamma: float) -> dict[str, float]:
    """Return `temperature`, `converged` and `at_bound` for the T that minimises the focal loss of logits [N, K].

    At a bound, T minimises the loss on smoothed targets (`pseudo_count`).

    Source: posterior §6.1, TS_FL.

    Example:
        >>> logits, targets = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> round(temperature_by_focal(logits, targets, gamma=1.0)["temperature"], 4)
        2.2918
    """
    from scipy.optimize import minimize_scalar

    # The focal loss can have several minima in T: a log grid finds the lowest valley, a bounded search its bottom.
    scale = logit_scale(logits)
    grid = np.linspace(math.log(scale / BOUND_RATIO), math.log(scale * BOUND_RATIO), 81)

    def loss(log_t: float, smoothing: float) -> float:
        return focal_value(logits, targets, math.exp(log_t), gamma, smoothing)

    def lowest(smoothing: float) -> int:
        return first_smallest(np.array([loss(log_t, smoothing) for log_t in grid]), tie=0.0)

    best, smoothing = lowest(0.0), 0.0
    at_bound = best in (0, len(grid) - 1)
    if at_bound:
        smoothing = pseudo_count(len(targets))
        best = lowest(smoothing)
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    minimum = minimize_scalar(loss, bounds=around, args=(smoothing,), method="bounded", options={"xatol": 1e-9})
    return {"temperature": math.exp(minimum.x), "converged": float(minimum.success), "at_bound": float(at_bound)}


def temperature_by_ece(
    logits: Floats, targets: Integers, grid: Floats, bins: int = 15, scheme: Scheme = "equal_width"
) -> dict[str, float]:
    """Return `temperature`, `converged` and `at_bound` for the first T of `grid` with the least ECE of logits [N, K].

    Source: mukhoti §5.

    Example:
        >>> logits, targets = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> temperature_by_ece(logits, targets, TEMPERATURE_GRIDS["mukhoti"], bins=2)["temperature"]
        1.9
    """
    prediction = logits.argmax(axis=1)
    correct = (prediction == targets).astype(np.float64)
    # Shifted once, not once per grid point; the division by T then stays exact for logits far from 0.
    shifted = logits - logits.max(axis=1, keepdims=True)
    values = [calibration_error(softmax64(shifted / t).max(axis=1), correct, bins, scheme) for t in grid]
    return best_on_grid(grid, np.asarray(values))


def best_on_grid(grid: Floats, values: Floats) -> dict[str, float]:
    """Return `temperature`, `converged` and `at_bound` for the first T of `grid` [G] whose `values` [G] is least."""
    best = first_smallest(values)
    return {"temperature": float(grid[best]), "converged": 1.0, "at_bound": float(best in (0, len(grid) - 1))}


def first_smallest(values: Floats, tie: float = TIE) -> int:
    """Return the first index of `values` [G] whose value is within `tie` of the smallest."""
    return int(np.flatnonzero(values <= values.min() + tie)[0])


@POSTHOC.add(
    "temperature",
    columns=("temperature", "converged", "at_bound"),
    layer=focal_temperature_layer,
    takes_gamma=lambda options: options.get("objective") == "focal",
    free=lambda classes, parameters: 1,
)
def fit_temperature(
    logits: ArrayLike,
    targets: ArrayLike,
    *,
    objective: Objective = "nll",
    gamma: Annotated[float | None, "[0, inf)"] = None,
    grid: Annotated[str, tuple(TEMPERATURE_GRIDS)] = "mukhoti",
    bins: Bins = 15,
    scheme: Scheme = "equal_width",
    apply_focal_map: bool = False,
) -> FocalTemperatureCalibrator:
    """Softmax(z/T), one T chosen by NLL, by ECE on a grid or by the focal loss.

    Fit temperature scaling on validation logits [N, K] and targets [N].

    `at_bound` is 1 if the data do not determine T: the search ended at an end of its range, because every sample is
    right (T → 0) or predictions are no better than chance (T → ∞). T is then fitted to smoothed targets
    (`pseudo_count`); with the ECE objective, T is the end of the grid.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> targets = [0, 0, 1, 1, 1]
        >>> fit_temperature(logits, targets).temperature
        0.906...
        >>> fit_temperature(logits, targets, objective="nll_on_grid", grid="properness").temperature
        0.91
        >>> fit_temperature(logits, targets, objective="focal", gamma=2.0).temperature
        2.26...

    Source: Guo et al. 2017; mukhoti §5; posterior §6.1.

    Args:
        logits: validation logits [N, K].
        targets: class indices [N].
        objective: `nll` (default; Guo et al. 2017), `nll_on_grid` (properness §5.1), `ece` on a grid (mukhoti §5) or
            `focal` (posterior §6.1) [Guo et al. 2017].
        gamma: γ for the focal objective; an evaluation passes the training loss's own [posterior §6.1: the training
            loss's own gamma].
        grid: `mukhoti` (.1 … 10) or `properness` (.01 … 5), for `ece` and `nll_on_grid` [mukhoti released code].
        bins: number of bins, for `ece` [mukhoti §5; properness §5.1].
        scheme: `equal_width` or `equal_mass` bins, for `ece` [mukhoti §5].
        apply_focal_map: apply Ψ^γ after scaling (posterior §6.1's TS_FL with Ψ), for `focal` [posterior §6.1].

    Raises:
        PosthocUnavailable: unusable validation data, or a missing γ.
    """
    values, labels = validation_data(logits, targets, bins if objective == "ece" else None)
    mapped = 0.0
    if objective == "nll":
        fitted = temperature_by_nll(values, labels)
    elif objective == "nll_on_grid":
        temperatures = TEMPERATURE_GRIDS[grid]
        fitted = best_on_grid(temperatures, np.array([focal_value(values, labels, t) for t in temperatures]))
        if fitted["at_bound"]:
            share = pseudo_count(len(labels))
            smoothed = np.array([focal_value(values, labels, t, smoothing=share) for t in temperatures])
            fitted["temperature"] = best_on_grid(temperatures, smoothed)["temperature"]
    elif objective == "focal":
        if gamma is None:
            raise PosthocUnavailable(
                "temperature with objective focal needs gamma and the training loss has none: give posthoc temperature "
                "a gamma, or train with the focal loss"
            )
        fitted = temperature_by_focal(values, labels, gamma)
        mapped = gamma if apply_focal_map else 0.0
    else:
        fitted = temperature_by_ece(values, labels, TEMPERATURE_GRIDS[grid], bins, scheme)
    return FocalTemperatureCalibrator("temperature", fitted, values.shape[1], fitted["temperature"], mapped)

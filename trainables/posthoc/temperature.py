"""Temperature scaling: softmax(z/T), one T > 0 chosen on validation data by NLL, ECE or the focal loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Booleans, Floats, Integers, log_softmax64, softmax64
from trainables.metrics.binning import Bins, Scheme, calibration_error
from trainables.posthoc.base import POSTHOC, Calibrator, PosthocUnavailable, validation_data
from trainables.posthoc.focal_map import FocalTemperatureCalibrator, FocalTemperatureLayer, log_complement, log_phi

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

#: Logits fitted at once, half a MiB in float64: more do not fit in a core's cache and take longer.
LOGITS_AT_ONCE = 2**16

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


def focal_slope(logits: Floats, targets: Integers, temperature: float, gamma: float = 0.0) -> float:
    """Return the derivative by β = 1/T of the mean focal loss of softmax(βz), z [N, K]; γ = 0 is the NLL.

    Each sample contributes Σ_k p_k (z_k − z_y) times the factor g(p_y, γ) of mukhoti Prop. 1.
    """
    # Subtract z_y before weighting. Otherwise terms would cancel where all samples are right and every term is tiny.
    margins = logits - logits[np.arange(len(targets)), targets][:, None]
    log_p = log_softmax64(margins / temperature)
    slope = np.einsum("nk,nk->n", np.exp(log_p), margins)
    if gamma != 0.0:
        log_t = np.take_along_axis(log_complement(log_p), targets[:, None], axis=1)[:, 0]
        log_y = np.take_along_axis(log_p, targets[:, None], axis=1)[:, 0]
        slope *= np.exp(log_phi(log_y, log_t, gamma))
    return float(slope.mean())


def focal_value(logits: Floats, targets: Integers, temperature: float, gamma: float = 0.0) -> float:
    """Return the mean focal loss −(1−p_y)^γ log p_y, in nats, of softmax(z/T) for z [N, K]; γ = 0 is the NLL."""
    log_p = log_softmax64(logits / temperature)
    log_y = np.take_along_axis(log_p, targets[:, None], axis=1)[:, 0]
    if gamma == 0.0:
        return float(-log_y.mean())
    log_t = np.take_along_axis(log_complement(log_p), targets[:, None], axis=1)[:, 0]
    return float(-(np.exp(gamma * log_t) * log_y).mean())


def smoothed_value(logits: Floats, targets: Integers, temperature: float, gamma: float = 0.0) -> float:
    """Return the mean focal loss, in nats, of softmax(z/T) on targets smoothed by `pseudo_count`; γ = 0 is the NLL."""
    log_p = log_softmax64(logits / temperature)
    share = pseudo_count(len(targets))
    losses = -log_p if gamma == 0.0 else -np.exp(gamma * log_complement(log_p)) * log_p
    of_target = np.take_along_axis(losses, targets[:, None], axis=1)
    return float((1 - share) * of_target.mean() + share * losses.mean())


def temperature_by_nll(logits: Floats, targets: Integers) -> dict[str, float]:
    """Return `temperature`, `converged` and `at_bound` for the T that minimises the NLL of logits [N, K].

    See `temperatures_by_nll`.

    Example:
        >>> logits = np.array([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
        >>> temperature_by_nll(logits, np.array([0, 0, 1, 1, 1]))["temperature"]
        0.906...
    """
    return temperatures_by_nll(logits[None], targets[None])[0]


def temperatures_by_nll(logits: Floats, targets: Integers) -> list[dict[str, float]]:
    """Return `temperature`, `converged` and `at_bound` for the T that minimises the NLL of each of E networks.

    The NLL is convex in β = 1/T, so its slope has one sign change. Newton's method in log T finds it for all E at once,
    and bisects the bracket if a step would leave it. It stops when steps are below 1e-8, because the squares of such
    steps are below rounding. The NLL falls all the way to T → 0 if every sample is right, and to T → ∞ if the logits
    point the wrong way; `at_bound` flags both. The T returned then minimises the NLL on smoothed targets
    (`pseudo_count`), or is the bound if these have no minimum either.

    Source: Guo et al. 2017, arXiv:1706.04599, §4.2.

    Args:
        logits: float64 logits [E, N, K].
        targets: class indices [E, N].

    Example:
        >>> logits = np.array([[[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
        >>> temperatures_by_nll(np.concatenate([logits, 2 * logits]), np.array([[0, 1, 1]] * 2))[1]["temperature"]
        2.644...
    """
    # Subtract z_y first. Otherwise terms would cancel where all samples are right and every term is tiny.
    margins = logits - np.take_along_axis(logits, targets[:, :, None], axis=2)
    pull = margins.mean(axis=2).mean(axis=1) * pseudo_count(targets.shape[1])
    # The largest margin is taken out of the exponent, so that no exp overflows for small T.
    largest = margins.max(axis=2)
    margins -= largest[:, :, None]
    scales = np.array([math.log(logit_scale(network)) for network in logits])
    log_t, converged, at_bound = _least_nll(margins, largest, scales, np.zeros(len(logits)))
    if at_bound.any():
        again = _least_nll(margins[at_bound], largest[at_bound], scales[at_bound], pull[at_bound])
        log_t[at_bound] = np.where(pull[at_bound] == 0.0, 0.0, again[0])  # equal logits: every T is as good as 1
        converged[at_bound] = again[1]
    return [
        {"temperature": math.exp(t), "converged": float(reached), "at_bound": float(bound)}
        for t, reached, bound in zip(log_t, converged, at_bound, strict=True)
    ]


def _least_nll(margins: Floats, largest: Floats, scale: Floats, pull: Floats) -> tuple[Floats, Booleans, Booleans]:
    """Return log T of the least NLL, whether the search converged, and whether it ended at a bound, all [E].

    Args:
        margins: margins [E, N, K] as in `_nll_slopes`.
        largest: largest margins [E, N] as in `_nll_slopes`.
        scale: logarithm of `logit_scale` [E].
        pull: amount subtracted from the slope because of smoothed targets [E]; 0 without smoothing.
    """
    low, high = (scale + side * math.log(BOUND_RATIO) for side in (-1, 1))
    every = np.arange(len(margins))
    falls, rises = (_nll_slopes(margins, largest, at)[0] - pull for at in (low, high))
    bound = np.where(falls <= 0.0, low, high)
    at_bound = (falls <= 0.0) | (rises >= 0.0)
    # The search starts at T = 1, the temperature of a calibrated network, or at the nearer end of the bracket.
    log_t, left = np.where(at_bound, bound, np.clip(0.0, low, high)), every[~at_bound]
    for _ in range(MOST_STEPS):
        if not len(left):
            break
        # Networks that have converged leave the batch, so that they cost nothing while the slowest one continues.
        slope, curvature = _nll_slopes(margins[left], largest[left], log_t[left])
        slope -= pull[left]
        low[left] = np.where(slope > 0.0, log_t[left], low[left])
        high[left] = np.where(slope <= 0.0, log_t[left], high[left])
        # Curvature underflows to 0 far from the minimum: the step is then infinite or NaN, and bisection replaces it.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = log_t[left] + slope / curvature
        inside = (step >= low[left] - ROUNDING) & (step <= high[left] + ROUNDING)
        step = np.where(inside, step, (low[left] + high[left]) / 2)
        step = np.where(slope == 0.0, log_t[left], step)
        moved, log_t[left] = np.abs(step - log_t[left]), step
        # Bisection only halves the error, so a bisection must reach the full accuracy; a Newton step can stop earlier.
        left = left[moved > np.where(inside, SMALL_STEP, ROUNDING)]
    return log_t, np.isin(every, left, invert=True), at_bound


def _nll_slopes(margins: Floats, largest: Floats, log_t: Floats) -> tuple[Floats, Floats]:
    """Return the slope of the NLL by β = 1/T, and minus that slope's derivative by log T, at T = exp(log_t), both [E].

    Args:
        margins: z_k − z_y minus its largest value per sample [E, N, K].
        largest: subtracted largest values [E, N].
        log_t: logarithms of T [E].
    """
    inverse = np.exp(-log_t)
    weights = np.exp(margins * inverse[:, None, None])
    total = weights.sum(axis=2)
    first = np.einsum("enk,enk->en", weights, margins) / total
    weights *= margins
    second = np.einsum("enk,enk->en", weights, margins) / total
    return (first + largest).mean(axis=1), inverse * (second - first**2).mean(axis=1)


def temperature_by_focal(logits: Floats, targets: Integers, gamma: float) -> dict[str, float]:
    """Return `temperature`, `converged` and `at_bound` for the T that minimises the focal loss of logits [N, K].

    At a bound, T minimises the loss on smoothed targets (`pseudo_count`).

    Source: posterior §6.1, TS_FL.

    Example:
        >>> logits, targets = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> round(temperature_by_focal(logits, targets, gamma=1.0)["temperature"], 4)
        2.2918
    """
    # The focal loss can have several minima in T: a log grid finds the lowest valley, then the slope's sign change
    # within that valley gives the exact T.
    scale = logit_scale(logits)
    grid = np.linspace(math.log(scale / BOUND_RATIO), math.log(scale * BOUND_RATIO), 81)
    values = np.array([focal_value(logits, targets, math.exp(log_t), gamma) for log_t in grid])
    best = first_smallest(values, tie=0.0)
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    fitted = _root_between(lambda log_t: focal_slope(logits, targets, math.exp(log_t), gamma) / scale, low, high)
    if not fitted["at_bound"]:
        return fitted
    from scipy.optimize import minimize_scalar

    def smoothed(log_t: float) -> float:
        return smoothed_value(logits, targets, math.exp(log_t), gamma)

    best = first_smallest(np.array([smoothed(log_t) for log_t in grid]), tie=0.0)
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return {**fitted, "temperature": math.exp(minimize_scalar(smoothed, bounds=around, method="bounded").x)}


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


def _root_between(slope: Callable[[float], float], low: float, high: float) -> dict[str, float]:
    """Return the temperature where `slope`, the derivative by 1/T as a function of log T, turns from + to −.

    Without a sign change between `low` and `high`, return the bound with the lower loss.
    """
    from scipy.optimize import brentq

    at_low, at_high = slope(low), slope(high)
    if at_low <= 0.0 or at_high >= 0.0:
        bound = low if at_low <= 0.0 else high
        return {"temperature": math.exp(bound), "converged": 1.0, "at_bound": 1.0}
    root, report = brentq(slope, low, high, xtol=1e-13, rtol=1e-13, full_output=True, disp=False)
    return {"temperature": math.exp(root), "converged": float(report.converged), "at_bound": 0.0}


def fit_temperatures(
    data: Sequence[tuple[ArrayLike, ArrayLike]], **options: Any
) -> list[Calibrator | PosthocUnavailable]:
    """Fit temperature scaling on several networks; networks with logits of one shape are fitted at once.

    Returns a calibrator or the error per network, in order.

    Args:
        data: validation logits [N, K] and targets [N] per network.
        options: options of `fit_temperature`; only the NLL objective is vectorised.
    """
    results: list[Calibrator | PosthocUnavailable | None] = [None] * len(data)
    shapes: dict[tuple[int, ...], list[tuple[int, Floats, Integers]]] = {}
    for at, (logits, targets) in enumerate(data):
        try:
            # A network with more than half the limit would be alone in its batch anyway.
            if options.get("objective", "nll") != "nll" or 2 * np.size(logits) > LOGITS_AT_ONCE:
                results[at] = fit_temperature(logits, targets, **options)
            else:
                values, labels = validation_data(logits, targets)
                shapes.setdefault(values.shape, []).append((at, values, labels))
        except PosthocUnavailable as error:
            results[at] = error
    for (samples, classes), same in shapes.items():
        step = LOGITS_AT_ONCE // (samples * classes)
        for part in (same[start : start + step] for start in range(0, len(same), step)):
            fitted = temperatures_by_nll(np.stack([v for _, v, _ in part]), np.stack([y for _, _, y in part]))
            for (at, _, _), parameters in zip(part, fitted, strict=True):
                results[at] = FocalTemperatureCalibrator("temperature", parameters, classes, parameters["temperature"])
    return [result for result in results if result is not None]


@POSTHOC.add(
    "temperature",
    build_many=fit_temperatures,
    columns=("temperature", "converged", "at_bound"),
    layer=FocalTemperatureLayer,
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

    `at_bound` is 1 if the data do not determine T: the search ended at an end of its range, for example because every
    sample is right. T is then fitted to smoothed targets (`pseudo_count`); with the ECE objective, T is the end of the
    grid.

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
            smoothed = np.array([smoothed_value(values, labels, t) for t in temperatures])
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

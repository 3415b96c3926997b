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

#: Temperatures by name, computed as i/10 and i/100: adding up a step drifts off the grid.
TEMPERATURE_GRIDS: dict[str, Floats] = {
    "mukhoti": np.arange(1, 101) / 10.0,  # .1 … 10 (released code of mukhoti)
    "properness": np.arange(1, 501) / 100.0,  # .01 … 5 (properness §5.1)
}

#: T is searched within this factor of the logits' scale on both sides: beyond, softmax is one-hot or uniform.
BOUND_RATIO = 1e4

#: A step of log T after which another would be below rounding: Newton's method squares the error.
SMALL_STEP = 1e-8

#: What log T is known to.
ROUNDING = 1e-13

#: Logits that are fitted at once, half a MiB in float64: more do not stay in a core's cache, and take longer.
TOGETHER = 2**16

#: Enough to halve the bracket to nothing; some ten are taken.
MOST_STEPS = 200

#: Objective values this close are a tie, which the smallest temperature wins; rounding alone differs by 1e-16.
TIE = 1e-12


def pseudo_count(samples: int) -> float:
    """Return the share of a target that goes to the uniform distribution where data do not determine a fit: 1/(N + 1).

    The target (1 − ε) e_y + ε/K, ε = 1/(N + 1), is that of N samples and one that belongs to all K classes alike. Platt
    1999 (Probabilistic outputs for support vector machines, §2.2) smooths two classes so, by one pseudo-count each:
    (N₊ + 1)/(N₊ + 2). Berta, Holzmüller, Jordan & Bach 2025 (Rethinking early stopping: refine, then calibrate,
    arXiv:2501.19195) mix a uniform share of this size into calibrated probabilities.
    """
    return 1.0 / (samples + 1)


def logit_scale(logits: Floats) -> float:
    """Return the root mean square of the logits [N, K] about their row means; 1 where all logits are equal."""
    centred = logits - logits.mean(axis=1, keepdims=True)
    largest = float(np.abs(centred).max())
    if largest == 0.0:
        return 1.0
    return largest * math.sqrt(float(np.mean((centred / largest) ** 2)))


def focal_slope(logits: Floats, targets: Integers, temperature: float, gamma: float = 0.0) -> float:
    """Return the derivative, by β = 1/T, of the mean focal loss of softmax(βz) for z [N, K]; γ = 0 is the NLL.

    Σ_k p_k (z_k − z_y) for each sample, times mukhoti Prop. 1's factor g(p_y, γ). Differences to z_y come first,
    so that nothing cancels where all samples are right and every term is tiny.
    """
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
    """Return the mean focal loss, in nats, of softmax(z/T) for targets smoothed by `pseudo_count`; γ = 0 is the NLL."""
    log_p = log_softmax64(logits / temperature)
    share = pseudo_count(len(targets))
    each = -log_p if gamma == 0.0 else -np.exp(gamma * log_complement(log_p)) * log_p
    of_target = np.take_along_axis(each, targets[:, None], axis=1)
    return float((1 - share) * of_target.mean() + share * each.mean())


def temperature_by_nll(logits: Floats, targets: Integers) -> dict[str, float]:
    """Return `temperature, converged, at_bound` of the T with least NLL of logits [N, K]; see `temperatures_by_nll`."""
    return temperatures_by_nll(logits[None], targets[None])[0]


def temperatures_by_nll(logits: Floats, targets: Integers) -> list[dict[str, float]]:
    """Return `temperature, converged, at_bound` of the T with least NLL of each of E logits (Guo et al. 2017).

    The NLL is convex in β = 1/T: its slope has one sign change, found for all E at once by Newton's method in log T,
    halving the bracket where a step would leave it, until steps are below 1e-8, whose squares are below rounding.
    Where every sample is right the NLL falls all the way to T → 0, and where the logits point the wrong way to T → ∞:
    `at_bound` flags both. The T of least NLL of smoothed targets (`pseudo_count`) is then returned, or the bound where
    these have no minimum either.

    Args:
        logits: float64 [E, N, K].
        targets: class indices [E, N].
    """
    # Differences to z_y first, so that nothing cancels where all samples are right and every term is tiny.
    margins = logits - np.take_along_axis(logits, targets[:, :, None], axis=2)
    pull = margins.mean(axis=2).mean(axis=1) * pseudo_count(targets.shape[1])
    largest = margins.max(axis=2)
    margins -= largest[:, :, None]
    ends = np.array([math.log(logit_scale(each)) for each in logits])
    found, converged, at_bound = _least_nll(margins, largest, ends, np.zeros(len(logits)))
    if at_bound.any():
        again = _least_nll(margins[at_bound], largest[at_bound], ends[at_bound], pull[at_bound])
        found[at_bound] = np.where(pull[at_bound] == 0.0, 0.0, again[0])  # equal logits: every T is as good as 1
        converged[at_bound] = again[1]
    return [
        {"temperature": math.exp(found[at]), "converged": float(converged[at]), "at_bound": float(at_bound[at])}
        for at in range(len(logits))
    ]


def _least_nll(margins: Floats, largest: Floats, scale: Floats, pull: Floats) -> tuple[Floats, Booleans, Booleans]:
    """Return log T of least NLL, whether it converged, and whether it is a bound, all [E]; see `_nll_slopes`.

    Args:
        margins, largest: as there.
        scale: logarithm of the logits' [E].
        pull: what smoothed targets take from the slope [E]; 0 without smoothing.
    """
    low, high = (scale + side * math.log(BOUND_RATIO) for side in (-1, 1))
    every = np.arange(len(margins))
    falls, rises = (_nll_slopes(margins, largest, at)[0] - pull for at in (low, high))
    bound = np.where(falls <= 0.0, low, high)
    at_bound = (falls <= 0.0) | (rises >= 0.0)
    found, left = np.where(at_bound, bound, np.clip(0.0, low, high)), every[~at_bound]
    for _ in range(MOST_STEPS):
        if not len(left):
            break
        slope, curvature = _nll_slopes(margins[left], largest[left], found[left])
        slope -= pull[left]
        low[left] = np.where(slope > 0.0, found[left], low[left])
        high[left] = np.where(slope <= 0.0, found[left], high[left])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            step = found[left] + slope / curvature
        inside = (step >= low[left] - ROUNDING) & (step <= high[left] + ROUNDING)
        step = np.where(inside, step, (low[left] + high[left]) / 2)
        step = np.where(slope == 0.0, found[left], step)
        moved, found[left] = np.abs(step - found[left]), step
        left = left[moved > np.where(inside, SMALL_STEP, ROUNDING)]
    return found, np.isin(every, left, invert=True), at_bound


def _nll_slopes(margins: Floats, largest: Floats, log_t: Floats) -> tuple[Floats, Floats]:
    """Return the NLL's slope by β = 1/T, and minus the slope of that by log T, both [E], at T = exp(log_t).

    Args:
        margins: z_k − z_y, less the largest of each sample [E, N, K].
        largest: what was subtracted [E, N].
        log_t: [E].
    """
    inverse = np.exp(-log_t)
    weights = np.exp(margins * inverse[:, None, None])
    total = weights.sum(axis=2)
    first = np.einsum("enk,enk->en", weights, margins) / total
    weights *= margins
    second = np.einsum("enk,enk->en", weights, margins) / total
    return (first + largest).mean(axis=1), inverse * (second - first**2).mean(axis=1)


def temperature_by_focal(logits: Floats, targets: Integers, gamma: float) -> dict[str, float]:
    """Return `temperature, converged, at_bound` of the T with least focal loss of logits [N, K].

    TS_FL of posterior §6.1. The focal loss in T may have several minima: a log grid finds the lowest one's
    surroundings, the slope's sign change within them its exact place. At a bound, targets are smoothed
    (`pseudo_count`).
    """
    scale = logit_scale(logits)
    grid = np.linspace(math.log(scale / BOUND_RATIO), math.log(scale * BOUND_RATIO), 81)
    values = np.array([focal_value(logits, targets, math.exp(log_t), gamma) for log_t in grid])
    best = first_smallest(values, tie=0.0)
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = _root_between(lambda log_t: focal_slope(logits, targets, math.exp(log_t), gamma) / scale, low, high)
    if not found["at_bound"]:
        return found
    from scipy.optimize import minimize_scalar

    def smoothed(log_t: float) -> float:
        return smoothed_value(logits, targets, math.exp(log_t), gamma)

    best = first_smallest(np.array([smoothed(log_t) for log_t in grid]), tie=0.0)
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return {**found, "temperature": math.exp(minimize_scalar(smoothed, bounds=around, method="bounded").x)}


def temperature_by_ece(
    logits: Floats, targets: Integers, grid: Floats, bins: int = 15, scheme: Scheme = "equal_width"
) -> dict[str, float]:
    """Return `temperature, converged, at_bound` of the first T of `grid` with least ECE (mukhoti §5); logits [N, K]."""
    prediction = logits.argmax(axis=1)
    correct = (prediction == targets).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    values = [calibration_error(softmax64(shifted / t).max(axis=1), correct, bins, scheme) for t in grid]
    return best_on_grid(grid, np.asarray(values))


def best_on_grid(grid: Floats, values: Floats) -> dict[str, float]:
    """Return `temperature, converged, at_bound` of the first T of `grid` [G] with the least of `values` [G]."""
    best = first_smallest(values)
    return {"temperature": float(grid[best]), "converged": 1.0, "at_bound": float(best in (0, len(grid) - 1))}


def first_smallest(values: Floats, tie: float = TIE) -> int:
    """Return the first index of `values` [G] whose value is within `tie` of the smallest."""
    return int(np.flatnonzero(values <= values.min() + tie)[0])


def _root_between(slope: Callable[[float], float], low: float, high: float) -> dict[str, float]:
    """Return the temperature where `slope` (by 1/T, of log T) changes sign from + to −, or the bound it points to.

    A slope by 1/T above 0 at large T falls as T falls; at or below 0 already at `high`, more T never hurts less.
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
    """Return the calibrator of each (logits, targets), or why there is none; those of one shape are fitted at once.

    Args:
        data: validation logits [N, K] and targets [N] of several networks.
        options: those of `fit_temperature`; only the NLL is fitted at once.
    """
    found: list[Calibrator | PosthocUnavailable | None] = [None] * len(data)
    shapes: dict[tuple[int, ...], list[tuple[int, Floats, Integers]]] = {}
    for at, (logits, targets) in enumerate(data):
        try:
            if options.get("objective", "nll") != "nll" or 2 * np.size(logits) > TOGETHER:
                found[at] = fit_temperature(logits, targets, **options)
            else:
                values, labels = validation_data(logits, targets)
                shapes.setdefault(values.shape, []).append((at, values, labels))
        except PosthocUnavailable as error:
            found[at] = error
    for (samples, classes), same in shapes.items():
        step = TOGETHER // (samples * classes)
        for part in (same[start : start + step] for start in range(0, len(same), step)):
            fitted = temperatures_by_nll(np.stack([v for _, v, _ in part]), np.stack([y for _, _, y in part]))
            for (at, _, _), each in zip(part, fitted, strict=True):
                found[at] = FocalTemperatureCalibrator("temperature", each, classes, each["temperature"], 0.0)
    return [each for each in found if each is not None]


@POSTHOC.add(
    "temperature",
    build_many=fit_temperatures,
    columns=("temperature", "converged", "at_bound"),
    layer=FocalTemperatureLayer,
    takes_gamma=lambda options: options.get("objective") == "focal",
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

    Return softmax(z/T), T chosen on validation logits [N, K] and targets [N].

    `at_bound` is 1 where they do not determine T: the search ended at an end of its range, as where every sample is
    right. T is then that of smoothed targets (`pseudo_count`), by ECE the end of the grid.

    Source: Guo et al. 2017; mukhoti §5; posterior §6.1.

    Args:
        logits: [N, K].
        targets: [N] class indices.
        objective: `nll` (default; Guo et al. 2017), `nll_on_grid` (properness §5.1), `ece` on a grid (mukhoti §5) or
            `focal` (posterior §6.1) [Guo et al. 2017].
        gamma: γ of the focal objective; an evaluation gives the training loss's own (posterior §6.1) [posterior
            §6.1: the training loss's own gamma].
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
        found = temperature_by_nll(values, labels)
    elif objective == "nll_on_grid":
        temperatures = TEMPERATURE_GRIDS[grid]
        found = best_on_grid(temperatures, np.array([focal_value(values, labels, t) for t in temperatures]))
        if found["at_bound"]:
            smoothed = np.array([smoothed_value(values, labels, t) for t in temperatures])
            found["temperature"] = best_on_grid(temperatures, smoothed)["temperature"]
    elif objective == "focal":
        if gamma is None:
            raise PosthocUnavailable(
                "temperature by the focal loss needs gamma and the training loss has none: give posthoc temperature a "
                "gamma, or train with focal"
            )
        found = temperature_by_focal(values, labels, gamma)
        mapped = gamma if apply_focal_map else 0.0
    else:
        found = temperature_by_ece(values, labels, TEMPERATURE_GRIDS[grid], bins, scheme)
    return FocalTemperatureCalibrator("temperature", found, values.shape[1], found["temperature"], mapped)

"""Regions where the focal loss's minimiser is over- or under-confident, and the temperature nearest to Ψ^γ.

The comparison with temperatures uses dense grids of logits, without data or training: the closest temperature per γ and
the line through 1/T (properness Figs. 2 and 6), the temperatures that bound the binary map (Fig. 3), and the confidence
before and after the map (posterior Fig. 2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Booleans, Floats, softmax64
from trainables.posthoc.base import PosthocUnavailable
from trainables.posthoc.focal_map import focal_map, focal_map_of_logits, log_phi, training_gamma

#: Regions of posterior Thm. 8, defined for networks trained with one constant γ > 0.
REGIONS = ("below_tau_oc", "ambiguous", "above_tau_uc", "over_confident", "under_confident")
REGION_COLUMNS = tuple(f"region_{name}" for name in REGIONS)


@dataclass(frozen=True)
class RegionThresholds:
    """Top scores ≤ `over_confident` (τ_oc) are over-confident, those ≥ `under_confident` (τ_uc) under-confident."""

    over_confident: float
    under_confident: float


@lru_cache(maxsize=64)
def region_thresholds(gamma: float) -> RegionThresholds:
    """Return τ_oc = argmax φ^γ and τ_uc, the root of φ^γ = 1 above it, where 0 < τ_oc < τ_uc < 1/2.

    Raises PosthocUnavailable for γ ≤ 0, where the focal loss has no such regions.

    Source: posterior Thm. 8.

    Example:
        >>> region_thresholds(1.0)
        RegionThresholds(over_confident=0.135..., under_confident=0.367...)
    """
    from scipy.optimize import brentq

    if not (gamma > 0.0 and math.isfinite(gamma)):
        raise PosthocUnavailable(f"gamma = {gamma:g} must be above 0: the minimiser of cross-entropy is calibrated")

    def rise(log_v: float) -> float:
        # t²·d/dv[ln(1−v) + ln(1 + γw)/γ]·(1 + γw), w' = −(ln v + 1 − v)/t²
        v = math.exp(log_v)
        t = 1.0 - v
        return -(log_v + t) - t * (1.0 - gamma * v * log_v / t)

    def excess(log_v: float) -> float:
        log_t = math.log1p(-math.exp(log_v))
        return float(log_phi(np.array([log_v]), np.array([log_t]), gamma)[0]) / gamma

    # Roots in ln v: τ_oc falls towards 0 as γ grows, where steps in v would lose all digits.
    over = brentq(rise, math.log(1e-300), math.log(0.5), xtol=1e-14, rtol=1e-14)
    under = brentq(excess, over, math.log(0.5), xtol=1e-14, rtol=1e-14)
    return RegionThresholds(math.exp(over), math.exp(under))


def over_confident(probabilities: ArrayLike, gamma: float) -> Booleans:
    """Return [N] True where the focal risk's minimiser `probabilities` [N, K] is over-confident (posterior Thm. 8).

    Top scores up to τ_oc are over-confident, and top scores from τ_uc on are not. Between the thresholds, a top score
    is over-confident if it exceeds the top score of Ψ^γ.

    Example:
        >>> over_confident([[0.12] + [0.11] * 8, [0.6] + [0.05] * 8], gamma=1.0)
        array([ True, False])
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    top = values.max(axis=1)
    thresholds = region_thresholds(gamma)
    between = (top > thresholds.over_confident) & (top < thresholds.under_confident)
    above: Booleans = top <= thresholds.over_confident
    above[between] = top[between] > focal_map(values[between], gamma).max(axis=1) if between.any() else False
    return above


def region_shares(probabilities: ArrayLike, gamma: float) -> dict[str, float]:
    """Return the share of samples per region of posterior Thm. 8.

    The keys `below_tau_oc`, `ambiguous` and `above_tau_uc` sum to 1. The keys `over_confident` and `under_confident`
    also sum to 1: Ψ^γ decides on the ambiguous samples.

    Args:
        probabilities: uncalibrated probabilities [N, K] from a focal-trained network.
        gamma: its training γ.

    Example:
        >>> shares = region_shares([[0.12] + [0.11] * 8, [0.6] + [0.05] * 8], gamma=1.0)
        >>> shares["below_tau_oc"], shares["above_tau_uc"]
        (0.5, 0.5)
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    top = values.max(axis=1)
    thresholds = region_thresholds(gamma)
    below, above = top <= thresholds.over_confident, top >= thresholds.under_confident
    over = float(over_confident(values, gamma).mean())
    shares = (float(below.mean()), float((~below & ~above).mean()), float(above.mean()), over, 1.0 - over)
    return dict(zip(REGIONS, shares, strict=True))


def region_columns(probabilities: Floats, loss: Mapping[str, object]) -> dict[str, float]:
    """Return the region shares as columns for a network trained with `loss`; empty unless the loss has one γ > 0."""
    gamma = training_gamma(loss)
    if not gamma:
        return {}
    return dict(zip(REGION_COLUMNS, region_shares(probabilities, gamma).values(), strict=True))


def binary_focal_margin(margin: ArrayLike, gamma: float) -> Floats:
    """Return ln(FC_γ/(1 − FC_γ)), the logit difference after Ψ^γ on (σ(s), 1 − σ(s)), for any shape of s = `margin`.

    Example:
        >>> binary_focal_margin([1.0], gamma=1.0).round(4)
        array([1.7781])
    """
    s = np.asarray(margin, dtype=np.float64)
    flat = s.ravel()
    log_first, log_second = -np.logaddexp(0.0, -flat), -np.logaddexp(0.0, flat)
    first = log_first - log_phi(log_first, log_second, gamma)
    second = log_second - log_phi(log_second, log_first, gamma)
    return np.asarray((first - second).reshape(s.shape))


#: Logits span −reach to reach, by number of classes: properness section 3.2 for two, 3.3 for three and four.
REACH = {2: 20.0, 3: 5.0, 4: 5.0}

#: Spacing of the logits. Properness uses .001 and .01; this coarser grid changes no T by more than .002.
STEPS = {2: 0.01, 3: 0.05, 4: 0.2}

#: Search range of 1/T, wide enough for γ up to 20.
LOWEST, HIGHEST = 0.05, 30.0

#: Stands for γ → 0, where τ_oc is largest (.2032): with fewer than five classes, no prediction is over-confident.
SMALLEST_GAMMA = 1e-6


@dataclass(frozen=True)
class ClosestTemperature:
    """The temperature nearest to Ψ^γ, and the largest difference of a probability over all logits."""

    gamma: float
    temperature: float
    max_error: float

    @property
    def inverse_temperature(self) -> float:
        """1/T."""
        return 1.0 / self.temperature


@dataclass(frozen=True)
class TemperatureBounds:
    """Temperatures that bound the binary Ψ^γ at every logit.

    Scaling with `lower` gives sharper probabilities than `upper`.
    """

    gamma: float
    lower: float
    upper: float


def simplex_logits(classes: int, reach: float | None = None, step: float | None = None) -> Floats:
    """Return a grid of logits [N, classes] in descending order, the first always 0.

    Both maps depend only on differences of logits and treat classes alike. This grid, whose differences reach −2·reach,
    therefore represents all logits in [−reach, reach].

    Example:
        >>> simplex_logits(2, reach=1.0, step=1.0)
        array([[ 0.,  0.],
               [ 0., -1.],
               [ 0., -2.]])
    """
    reach, step = reach or REACH[classes], step or STEPS[classes]
    below = -np.arange(0, round(2 * reach / step) + 1) * step
    rest = np.array(list(itertools.combinations_with_replacement(below, classes - 1)))
    return np.concatenate([np.zeros((len(rest), 1)), rest], axis=1)


def closest_temperature(gamma: float, logits: Floats) -> ClosestTemperature:
    """Return the temperature with the smallest maximum difference to Ψ^γ over `logits` [N, K], for γ ≥ −1.

    Source: properness §3.2, Figs. 2 and 6.

    Example:
        >>> closest_temperature(1.0, simplex_logits(2))
        ClosestTemperature(gamma=1.0, temperature=0.5..., max_error=0.0...)
    """
    from scipy.optimize import minimize_scalar

    mapped = focal_map_of_logits(logits, gamma)

    def error(log_inverse: float) -> float:
        return float(np.abs(softmax64(logits * np.exp(log_inverse)) - mapped).max())

    # The error can have several valleys in 1/T: a scan finds the lowest one, a bounded search its bottom.
    scan = np.linspace(np.log(LOWEST), np.log(HIGHEST), 65)
    best = int(np.argmin([error(value) for value in scan]))
    around = (scan[max(best - 1, 0)], scan[min(best + 1, len(scan) - 1)])
    nearest = minimize_scalar(error, bounds=around, method="bounded", options={"xatol": 1e-6})
    return ClosestTemperature(gamma, float(np.exp(-nearest.x)), float(nearest.fun))


def line_through(fits: Sequence[ClosestTemperature]) -> tuple[float, float]:
    """Return slope and intercept of the least-squares line of 1/T on γ (properness Figs. 2 and 6).

    Example:
        >>> fits = [closest_temperature(gamma, simplex_logits(2)) for gamma in (1.0, 2.0)]
        >>> [round(value, 2) for value in line_through(fits)]
        [0.9, 0.88]
    """
    slope, intercept = np.polyfit([fit.gamma for fit in fits], [fit.inverse_temperature for fit in fits], 1)
    return float(slope), float(intercept)


def theoretical_bounds(gamma: float) -> TemperatureBounds:
    """Return the temperatures 1/(γ + 1) and 1/(γ + 1 − ln(γ + 1)/2) that bound the binary map, for γ ≥ 0.

    σ((γ + 1 − ½ ln(γ + 1)) s) ≤ Ψ^γ(σ(s)) ≤ σ((γ + 1) s) for logits s ≥ 0, mirrored for s < 0.

    Source: properness Prop. 3, corrected: it prints quotients s/(γ + 1) instead of products and exchanges the sides.

    Example:
        >>> theoretical_bounds(1.0)
        TemperatureBounds(gamma=1.0, lower=0.5, upper=0.604...)
    """
    return TemperatureBounds(gamma, 1 / (gamma + 1), float(1 / (gamma + 1 - 0.5 * np.log1p(gamma))))


def measured_bounds(gamma: float, reach: float = REACH[2], step: float = 0.001) -> TemperatureBounds:
    """Return the tightest bounds over logits in (0, reach] for γ ≥ 0; by symmetry they hold for negative logits.

    Example:
        >>> measured_bounds(1.0)
        TemperatureBounds(gamma=1.0, lower=0.508..., upper=0.564...)
    """
    # At each logit s exactly one temperature equals the map, 1/T = logit(Ψ)/s: the bounds are its extremes.
    s = np.arange(1, round(reach / step) + 1) * step
    inverse = binary_focal_margin(s, gamma) / s
    return TemperatureBounds(gamma, float(1 / inverse.max()), float(1 / inverse.min()))


def confidence_after(top: Floats, gamma: float, classes: int) -> Floats:
    """Return the true probability [N] of the top class where the focal risk's minimiser has confidence `top`.

    All other classes share the rest equally.

    Args:
        top: confidences [N] in (1/classes, 1).
        gamma: γ in the focal loss.
        classes: number of classes, at least 2.

    Example:
        >>> confidence_after(np.array([0.6]), gamma=3.0, classes=10).round(3)
        array([0.899])
    """
    values = np.asarray(top, dtype=np.float64)
    rest = np.repeat(((1.0 - values) / (classes - 1))[:, None], classes - 1, axis=1)
    return focal_map(np.concatenate([values[:, None], rest], axis=1), gamma)[:, 0]


def largest_overconfident_gamma(classes: int) -> float | None:
    """Return the largest γ at which a prediction of K classes can be over-confident, or `None` if no γ allows it.

    A top confidence is at least 1/K and over-confident up to τ_oc(γ), which falls as γ grows (posterior Thm. 8).

    Example:
        >>> largest_overconfident_gamma(4), round(largest_overconfident_gamma(10), 2)
        (None, 2.18)
    """
    from scipy.optimize import brentq

    def room(gamma: float) -> float:
        return region_thresholds(gamma).over_confident - 1.0 / classes

    if room(SMALLEST_GAMMA) <= 0:
        return None
    high = 1.0
    while room(high) > 0:
        high *= 2.0
    return float(brentq(room, SMALLEST_GAMMA, high, xtol=1e-10))

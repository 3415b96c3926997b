"""Where the focal loss's minimiser is over- or under-confident, and how near the focal map Ψ^γ is to a temperature.

The latter on dense grids of logits, without data or training: the closest temperature for each γ and the line through
1/T (properness Figs. 2 and 6), the temperatures between which the binary map lies (Fig. 3), and the confidence before
and after the map (posterior Fig. 2).
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

#: Shares of samples by region of posterior Thm. 8, for networks trained with one constant γ > 0.
REGIONS = ("below_tau_oc", "ambiguous", "above_tau_uc", "over_confident", "under_confident")
REGION_COLUMNS = tuple(f"region_{name}" for name in REGIONS)


@dataclass(frozen=True)
class RegionThresholds:
    """Top scores ≤ `over_confident` (τ_oc) are over-confident, ≥ `under_confident` (τ_uc) under-confident."""

    over_confident: float
    under_confident: float


@lru_cache(maxsize=64)
def region_thresholds(gamma: float) -> RegionThresholds:
    """Return τ_oc = argmax φ^γ and τ_uc, the root of φ^γ = 1 above it, of posterior Thm. 8: 0 < τ_oc < τ_uc < 1/2.

    Raises PosthocUnavailable for γ ≤ 0, where the focal loss has no such regions.
    """
    from scipy.optimize import brentq

    if not (gamma > 0.0 and math.isfinite(gamma)):
        raise PosthocUnavailable(f"gamma = {gamma:g} must be above 0: cross-entropy (gamma 0) is calibrated everywhere")

    def rise(log_v: float) -> float:
        # t²·d/dv[ln(1−v) + ln(1 + γw)/γ]·(1 + γw), w' = −(ln v + 1 − v)/t²
        v = math.exp(log_v)
        t = 1.0 - v
        return -(log_v + t) - t * (1.0 - gamma * v * log_v / t)

    def excess(log_v: float) -> float:
        log_t = math.log1p(-math.exp(log_v))
        return float(log_phi(np.array([log_v]), np.array([log_t]), gamma)[0]) / gamma

    over = brentq(rise, math.log(1e-300), math.log(0.5), xtol=1e-14, rtol=1e-14)
    under = brentq(excess, over, math.log(0.5), xtol=1e-14, rtol=1e-14)
    return RegionThresholds(math.exp(over), math.exp(under))


def over_confident(probabilities: ArrayLike, gamma: float) -> Booleans:
    """Return [N] True where the focal risk's minimiser `probabilities` [N, K] is over-confident (posterior Thm. 8).

    By the thresholds at both ends; between them, where the top score exceeds that of Ψ^γ.
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    top = values.max(axis=1)
    thresholds = region_thresholds(gamma)
    between = (top > thresholds.over_confident) & (top < thresholds.under_confident)
    above: Booleans = top <= thresholds.over_confident
    above[between] = top[between] > focal_map(values[between], gamma).max(axis=1) if between.any() else False
    return above


def region_shares(probabilities: ArrayLike, gamma: float) -> dict[str, float]:
    """Return the shares of samples by region of posterior Thm. 8; the last two say how the ambiguous ones fall.

    Keys: `below_tau_oc`, `ambiguous`, `above_tau_uc` (they sum to 1), `over_confident`, `under_confident` (they sum
    to 1). `probabilities` [N, K] are a focal-trained network's own, γ its training γ.
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    top = values.max(axis=1)
    thresholds = region_thresholds(gamma)
    below, above = top <= thresholds.over_confident, top >= thresholds.under_confident
    over = float(over_confident(values, gamma).mean())
    shares = (float(below.mean()), float((~below & ~above).mean()), float(above.mean()), over, 1.0 - over)
    return dict(zip(REGIONS, shares, strict=True))


def region_columns(probabilities: Floats, loss: Mapping[str, object]) -> dict[str, float]:
    """Return the region shares of `probabilities` [N, K] of a network trained with `loss` (name, γ), or nothing."""
    gamma = training_gamma(loss)
    if not gamma:
        return {}
    return dict(zip(REGION_COLUMNS, region_shares(probabilities, gamma).values(), strict=True))


def binary_focal_margin(margin: ArrayLike, gamma: float) -> Floats:
    """Return ln(FC_γ/(1 − FC_γ)), the logit difference after Ψ^γ on (σ(s), 1 − σ(s)), for s = `margin` of any shape."""
    s = np.asarray(margin, dtype=np.float64)
    flat = s.ravel()
    log_first, log_second = -np.logaddexp(0.0, -flat), -np.logaddexp(0.0, flat)
    first = log_first - log_phi(log_first, log_second, gamma)
    second = log_second - log_phi(log_second, log_first, gamma)
    return np.asarray((first - second).reshape(s.shape))


#: Logits go from −reach to reach, by number of classes: properness section 3.2 for two, 3.3 for three and four.
REACH = {2: 20.0, 3: 5.0, 4: 5.0}

#: Distance of neighbouring logits. Properness takes .001 and .01; a coarser grid moves no T by more than .002.
STEPS = {2: 0.01, 3: 0.05, 4: 0.2}

#: Values of 1/T that are searched, for γ up to 20.
LOWEST, HIGHEST = 0.05, 30.0

#: Stands for γ → 0, where τ_oc has its largest value, .2032: fewer than five classes are never over-confident.
SMALLEST_GAMMA = 1e-6


@dataclass(frozen=True)
class ClosestTemperature:
    """The temperature scaling nearest to Ψ^γ: T, and the largest difference of any probability at any logits."""

    gamma: float
    temperature: float
    max_error: float

    @property
    def inverse_temperature(self) -> float:
        """1/T."""
        return 1.0 / self.temperature


@dataclass(frozen=True)
class TemperatureBounds:
    """Two temperatures between which the binary Ψ^γ lies at every logit: at `lower` scaling is the sharper one."""

    gamma: float
    lower: float
    upper: float


def simplex_logits(classes: int, reach: float | None = None, step: float | None = None) -> Floats:
    """Return logits [N, classes] over the simplex, of which the first is the largest and 0, the others in order.

    Both maps take differences of logits and do not care which class is which, so these stand for every choice of
    logits in [−reach, reach], whose differences go down to −2·reach.
    """
    reach, step = reach or REACH[classes], step or STEPS[classes]
    below = -np.arange(0, round(2 * reach / step) + 1) * step
    rest = np.array(list(itertools.combinations_with_replacement(below, classes - 1)))
    return np.concatenate([np.zeros((len(rest), 1)), rest], axis=1)


def closest_temperature(gamma: float, logits: Floats) -> ClosestTemperature:
    """Return the temperature that makes the largest difference to Ψ^γ over `logits` [N, K] smallest.

    A scan over 1/T, evenly in its logarithm, finds the lowest valley; a bounded search its bottom. γ ≥ −1.
    """
    from scipy.optimize import minimize_scalar

    mapped = focal_map_of_logits(logits, gamma)

    def error(log_inverse: float) -> float:
        return float(np.abs(softmax64(logits * np.exp(log_inverse)) - mapped).max())

    scan = np.linspace(np.log(LOWEST), np.log(HIGHEST), 65)
    best = int(np.argmin([error(value) for value in scan]))
    around = (scan[max(best - 1, 0)], scan[min(best + 1, len(scan) - 1)])
    found = minimize_scalar(error, bounds=around, method="bounded", options={"xatol": 1e-6})
    return ClosestTemperature(gamma, float(np.exp(-found.x)), float(found.fun))


def line_through(fits: Sequence[ClosestTemperature]) -> tuple[float, float]:
    """Return slope and intercept of the least-squares line through 1/T against γ."""
    slope, intercept = np.polyfit([fit.gamma for fit in fits], [fit.inverse_temperature for fit in fits], 1)
    return float(slope), float(intercept)


def theoretical_bounds(gamma: float) -> TemperatureBounds:
    """Return the temperatures 1/(γ + 1) and 1/(γ + 1 − ln(γ + 1)/2) that bound the binary map, for γ ≥ 0.

    σ((γ + 1 − ½ ln(γ + 1)) s) ≤ Ψ^γ(σ(s)) ≤ σ((γ + 1) s) for logits s ≥ 0, mirrored below. Properness Prop. 3 prints
    quotients s/(γ + 1) for the products and the two sides exchanged, which is false.
    """
    return TemperatureBounds(gamma, 1 / (gamma + 1), float(1 / (gamma + 1 - 0.5 * np.log1p(gamma))))


def measured_bounds(gamma: float, reach: float = REACH[2], step: float = 0.001) -> TemperatureBounds:
    """Return the tightest bounds at logits in (0, reach]; by symmetry they hold below 0 as well. γ ≥ 0.

    At each logit s exactly one temperature meets the map, 1/T = logit(Ψ)/s: the bounds are the extremes of those.
    """
    s = np.arange(1, round(reach / step) + 1) * step
    inverse = binary_focal_margin(s, gamma) / s
    return TemperatureBounds(gamma, float(1 / inverse.max()), float(1 / inverse.min()))


def confidence_after(top: Floats, gamma: float, classes: int) -> Floats:
    """Return the true class's probability where the focal risk's minimiser has confidence `top`, others being equal.

    Args:
        top: [N] confidences in (1/classes, 1).
        gamma: of the focal loss.
        classes: K ≥ 2.
    """
    values = np.asarray(top, dtype=np.float64)
    rest = np.repeat(((1.0 - values) / (classes - 1))[:, None], classes - 1, axis=1)
    return focal_map(np.concatenate([values[:, None], rest], axis=1), gamma)[:, 0]


def largest_overconfident_gamma(classes: int) -> float | None:
    """Return the γ above which the minimiser is never over-confident with so many classes; `None` where it never is.

    A confidence is at least 1/K, and over-confident below τ_oc(γ) (posterior Thm. 8), which falls as γ grows.
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

"""How near the focal map Ψ^γ is to temperature scaling, on dense grids of logits: no data, no training.

The closest temperature for each γ and the line through 1/T (properness Figs. 2 and 6), the temperatures between which
the binary map lies (Fig. 3), and the confidence before and after the map (posterior Fig. 2).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainables.metrics.probabilities import Floats, softmax64
from trainables.posthoc.confidence_regions import binary_focal_margin, region_thresholds
from trainables.posthoc.focal_map import focal_map, focal_map_of_logits

REACH = {2: 20.0, 3: 5.0, 4: 5.0}
"""Logits go from −reach to reach, by number of classes: properness section 3.2 for two, 3.3 for three and four."""

STEPS = {2: 0.01, 3: 0.05, 4: 0.2}
"""Distance of neighbouring logits. Properness takes .001 and .01; a coarser grid moves no T by more than .002."""

LOWEST, HIGHEST = 0.05, 30.0
"""Values of 1/T that are searched, for γ up to 20."""

SMALLEST_GAMMA = 1e-6
"""Stands for γ → 0, where τ_oc has its largest value, .2032: fewer than five classes are never over-confident."""


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
    """Return properness Prop. 3's bounds for γ ≥ 0: 1/T = γ + 1 and γ + 1 − ln(γ + 1)/2."""
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

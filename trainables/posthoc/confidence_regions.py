"""Where the focal loss's minimiser is over- or under-confident, and how near the focal map is to a temperature."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.probabilities import Booleans, Floats
from trainables.posthoc.base import PosthocUnavailable
from trainables.posthoc.focal_map import focal_map, log_phi, training_gamma

REGION_COLUMNS = (
    "region_below_tau_oc",
    "region_ambiguous",
    "region_above_tau_uc",
    "region_over_confident",
    "region_under_confident",
)
"""Shares of samples by region of posterior Thm. 8, for networks trained with one constant γ > 0."""


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
    return {
        "below_tau_oc": float(below.mean()),
        "ambiguous": float((~below & ~above).mean()),
        "above_tau_uc": float(above.mean()),
        "over_confident": over,
        "under_confident": 1.0 - over,
    }


def region_columns(probabilities: Floats, loss: Mapping[str, object]) -> dict[str, float]:
    """Return the region shares of `probabilities` [N, K] of a network trained with `loss` (name, γ), or nothing."""
    gamma = training_gamma(loss)
    if not gamma:
        return {}
    return {f"region_{name}": share for name, share in region_shares(probabilities, gamma).items()}


def binary_focal_margin(margin: ArrayLike, gamma: float) -> Floats:
    """Return ln(FC_γ/(1 − FC_γ)), the logit difference after Ψ^γ on (σ(s), 1 − σ(s)), for s = `margin` of any shape."""
    s = np.asarray(margin, dtype=np.float64)
    flat = s.ravel()
    log_first, log_second = -np.logaddexp(0.0, -flat), -np.logaddexp(0.0, flat)
    first = log_first - log_phi(log_first, log_second, gamma)
    second = log_second - log_phi(log_second, log_first, gamma)
    return np.asarray((first - second).reshape(s.shape))


def binary_focal_map(margin: ArrayLike, gamma: float) -> Floats:
    """Return FC_γ(s): the first class's probability after Ψ^γ on (σ(s), 1 − σ(s)), for s = `margin` of any shape."""
    return _sigmoid(binary_focal_margin(margin, gamma))


def binary_focal_bounds(margin: ArrayLike, gamma: float) -> tuple[Floats, Floats]:
    """Return the bounds (lower, upper) of `binary_focal_map`, both temperature scalings, for γ ≥ 0 and any shape of s.

    For s ≥ 0: σ((γ+1−½ln(γ+1))·s) ≤ FC_γ(s) ≤ σ((γ+1)·s), the other way round for s < 0 (properness Prop. 3, whose
    print garbles the inequality). Raises PosthocUnavailable for γ < 0.
    """
    if not gamma >= 0.0:
        raise PosthocUnavailable(f"gamma = {gamma:g} must be at least 0: the bound is proved there only")
    s = np.asarray(margin, dtype=np.float64)
    gentle = _sigmoid((gamma + 1.0 - 0.5 * math.log(gamma + 1.0)) * s)
    steep = _sigmoid((gamma + 1.0) * s)
    return np.minimum(gentle, steep), np.maximum(gentle, steep)


def _sigmoid(s: Floats) -> Floats:
    return np.asarray(np.exp(-np.logaddexp(0.0, -s)))

"""The focal calibration map Ψ^γ, which turns the focal risk's minimiser into the class posterior.

Ψ^γ(p) ∝ h(p_i) with h(v) = v/φ(v) and φ(v) = (1−v)^γ − γ(1−v)^{γ−1} v ln v (posterior Eqs. 12–13; properness
Eq. 1 is the same map). The code evaluates

    ln φ(v) = γ ln(1−v) + ln(1 + γ w(v)),   w(v) = −v ln v/(1−v) ∈ [0, 1],

in log space, which stays exact where v rounds to 1 or underflows to 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, log_softmax64, softmax64
from trainables.posthoc.base import POSTHOC, PosthocUnavailable, SoftmaxCalibrator, validation_data
from trainables.registry import HyperparameterValue

if TYPE_CHECKING:
    from torch import Tensor, nn

Array = TypeVar("Array", Floats, "Tensor")

#: Below −1, φ turns negative near v = 1: the map is undefined.
SMALLEST_GAMMA = -1.0

#: Below this γ, log(1 + γw) cancels where t is small.
NEAR_MINUS_ONE = -0.99

#: Stands for log 0, so that its product with γ is finite. It fits in float32, the type in which ONNX stores it.
SMALLEST_LOG = -1e30


def require_gamma(gamma: float) -> None:
    """Raise PosthocUnavailable unless −1 ≤ γ < ∞."""
    if not (np.isfinite(gamma) and gamma >= SMALLEST_GAMMA):
        raise PosthocUnavailable(f"gamma = {gamma:g} is outside [-1, inf): below -1 the focal map is undefined")


def log_complement(log_probabilities: Floats) -> Floats:
    """Return log(1 − p_k) for every class of `log_probabilities` [N, K], exact even where p_k rounds to 1, in O(K)."""
    # log1p(−p) is exact for all classes but the largest; for that one, 1 − p is the sum of the others.
    rows = np.arange(len(log_probabilities))
    top = log_probabilities.argmax(axis=1)
    others = log_probabilities.copy()
    others[rows, top] = -np.inf
    largest = others.max(axis=1)
    safe = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        complement: Floats = np.log1p(-np.exp(others))
        complement[rows, top] = safe + np.log(np.exp(others - safe[:, None]).sum(axis=1))
    return complement


def log_phi(log_v: Floats, log_t: Floats, gamma: float) -> Floats:
    """Return log φ^γ(v) elementwise from log v and log t, t = 1 − v, arrays of one shape (posterior Eq. 12).

    φ^γ(p_y) is also the ratio of the focal loss's logit gradient to cross-entropy's (mukhoti Prop. 1).

    Example:
        >>> v = np.array([0.25, 0.5])
        >>> np.exp(log_phi(np.log(v), np.log(1 - v), gamma=1.0)).round(4)
        array([1.0966, 0.8466])
    """
    # log 0 and 0·∞ occur at one-hot rows on purpose; their limits are taken afterwards.
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        return np.asarray(_log_phi(np, log_v, log_t, gamma))


def _log_phi(library: ModuleType, log_v: Array, log_t: Array, gamma: float) -> Array:
    """Return `log_phi` of arrays or tensors; `library` is numpy or torch, whose functions have the same names."""
    t = library.exp(log_t)
    # Near v = 1, ln v computed from t keeps digits that v has lost.
    precise = library.where(t < 0.5, library.log1p(-t.clip(max=0.5)), log_v)
    v = library.exp(precise)
    w = library.where(v > 0.0, v * library.where(t > 0.0, -precise / t, 1.0), 0.0)
    result: Array
    if gamma > NEAR_MINUS_ONE:
        result = gamma * log_t + library.log1p(gamma * w)
        return result
    # Near γ = −1, 1 + γw cancels: it is (1+γ)w + (1−w), where 1 − w = t Σ_j t^j/((j+1)(j+2)) is lost to rounding
    # near t = 0, so five terms of the series replace it there.
    series = 1 / 2 + t * (1 / 6 + t * (1 / 12 + t * (1 / 20 + t / 30)))
    log_rest = log_t + library.log(library.where(t < 1e-3, series, (1.0 - w) / t))
    factor = float(np.log1p(gamma)) if gamma > SMALLEST_GAMMA else -math.inf
    result = gamma * log_t + library.logaddexp(factor + library.log(w), log_rest)
    return result


def focal_map_of_logits(logits: ArrayLike, gamma: float) -> Floats:
    """Return Ψ^γ(softmax(logits)) [N, K], float64. Raises PosthocUnavailable for γ < −1 or γ not finite."""
    return _focal_map(log_softmax64(logits), gamma)


def focal_map(probabilities: ArrayLike, gamma: float) -> Floats:
    """Return Ψ^γ(probabilities) [N, K] in float64; one-hot rows are fixed points and the argmax is kept.

    For γ > 0 the map usually raises the top confidence, but lowers a top confidence below τ_oc (posterior Thm. 8;
    properness Prop. 5 overlooks cases with many classes). For −1 ≤ γ < 0, h is not monotone, yet the argmax is kept.
    Raises PosthocUnavailable for γ < −1 or γ not finite.

    Source: posterior Eqs. 11-13; properness Eq. 1.

    Example:
        >>> focal_map([[0.7, 0.2, 0.1]], gamma=3.0).round(3)
        array([[0.967, 0.023, 0.01 ]])
    """
    with np.errstate(divide="ignore"):
        return _focal_map(np.log(np.asarray(probabilities, dtype=np.float64)), gamma)


def _focal_map(log_probabilities: Floats, gamma: float) -> Floats:
    require_gamma(gamma)
    return softmax64(log_probabilities if gamma == 0.0 else _mapped_logits(log_probabilities, gamma))


def _mapped_logits(log_probabilities: Floats, gamma: float) -> Floats:
    """Return logits of Ψ^γ, γ ≠ 0."""
    # A one-hot row has log t = −∞ at its top class, where only the limit of h is defined: any finite stand-in gives it.
    log_t = np.maximum(log_complement(log_probabilities), -1e300 / (1.0 + abs(gamma)))
    with np.errstate(invalid="ignore"):
        return np.asarray(log_probabilities - log_phi(log_probabilities, log_t, gamma))


class FocalTemperatureCalibrator(SoftmaxCalibrator):
    """Ψ^γ(softmax(logits/T)): temperature scaling at γ = 0, the focal map at T = 1, else focal temperature scaling."""

    def __init__(
        self, name: str, parameters: dict[str, float], classes: int, temperature: float = 1.0, gamma: float = 0.0
    ) -> None:
        """Store the map's `temperature` T > 0 and `gamma` ≥ −1."""
        super().__init__(name, parameters, classes)
        self.temperature = float(temperature)
        self.gamma = float(gamma)

    def _mapped(self, logits: Floats) -> Floats:
        # Subtracting the maximum first keeps the division exact for logits far from 0.
        scaled: Floats = (logits - logits.max(axis=1, keepdims=True)) / self.temperature
        return scaled if self.gamma == 0.0 else _mapped_logits(log_softmax64(scaled), self.gamma)


def focal_temperature_layer(calibrator: FocalTemperatureCalibrator) -> nn.Module:
    """Return the calibrator as a torch module, for exported programs."""
    import torch  # the import takes two seconds; only exporting needs it

    temperature, gamma = calibrator.temperature, calibrator.gamma

    class Layer(torch.nn.Module):
        def forward(self, logits: Tensor) -> Tensor:
            """Return probabilities [N, K] for logits [N, K]."""
            log_p = torch.log_softmax((logits - logits.amax(dim=1, keepdim=True)) / temperature, dim=1)
            if gamma == 0.0:
                return log_p.exp()
            top = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, log_p.argmax(dim=1, keepdim=True), True)
            others = log_p.masked_fill(top, -torch.inf)
            log_t = torch.where(top, others.logsumexp(dim=1, keepdim=True), torch.log1p(-others.exp()))
            log_t = log_t.clamp(min=SMALLEST_LOG / (1.0 + abs(gamma)))
            return torch.softmax(log_p - _log_phi(torch, log_p, log_t, gamma), dim=1)

    return Layer()


def training_gamma(loss: Mapping[str, object]) -> float | None:
    """Return the γ for which Ψ^γ maps the loss's risk minimiser to the posterior, or `None` if the loss has none.

    A loss declares it with `constant_gamma` (see `LossComponent`).

    Args:
        loss: the loss's `name` and hyperparameters.

    Raises:
        ValueError: a hyperparameter that determines γ is not a number.

    Example:
        >>> training_gamma({"name": "focal", "gamma": 2}), training_gamma({"name": "brier"})
        (2.0, None)
    """
    from trainables.losses import LOSSES  # imports torch

    name = str(loss.get("name"))
    declared = None if LOSSES.is_own(name) else LOSSES[name].constant_gamma
    gamma = None if declared is None else declared(loss)
    return None if gamma is None else float(gamma)


def with_training_gamma(
    method: str, options: Mapping[str, HyperparameterValue], loss: Mapping[str, object]
) -> dict[str, HyperparameterValue]:
    """Return `options` with the training loss's γ added if the method takes one and `options` has none.

    The focal map takes γ, and so does temperature scaling by the focal loss: TS_FL uses each network's own γ (posterior
    §6.1).

    Example:
        >>> with_training_gamma("focal_map", {}, {"name": "focal", "gamma": 2})
        {'gamma': 2.0}
    """
    component = None if POSTHOC.is_own(method) else POSTHOC[method]
    if component is None or not component.takes_gamma(options) or options.get("gamma") is not None:
        return dict(options)
    return {**options, "gamma": training_gamma(loss)}


@POSTHOC.add(
    "focal_map", columns=("gamma",), label="focal map", layer=focal_temperature_layer, takes_gamma=lambda options: True
)
def fit_focal_map(
    logits: ArrayLike, targets: ArrayLike, *, gamma: Annotated[float | None, "[-1, inf)"] = None
) -> FocalTemperatureCalibrator:
    """The focal calibration map, which undoes the focal loss's bias; nothing is fitted.

    Return the calibrator Ψ^γ(softmax(logits)) with the training loss's γ (posterior Thm. 11).

    Example:
        >>> calibrator = fit_focal_map([[2.0, 0.0], [0.0, 1.0]], [0, 1], gamma=2.0)
        >>> calibrator([[2.0, 0.0]]).round(3)
        array([[0.995, 0.005]])

    Source: posterior Eqs. 11-13; properness Eq. 1.

    Args:
        logits: validation logits [N, K], checked only to recognise a diverged network.
        targets: class indices [N].
        gamma: below -1 the map is undefined [posterior Thm. 11: the training loss's own gamma].

    Raises:
        PosthocUnavailable: unusable validation data, a missing γ, or γ < −1.
    """
    values, _ = validation_data(logits, targets)
    if gamma is None:
        raise PosthocUnavailable(
            "focal_map needs gamma and the training loss has none: give posthoc focal_map a gamma, or train with focal"
        )
    require_gamma(gamma)
    return FocalTemperatureCalibrator("focal_map", {"gamma": gamma}, values.shape[1], gamma=gamma)

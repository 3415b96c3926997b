"""Ensemble temperature scaling: a mixture of scaled, plain and uniform probabilities.

    p = w₁ softmax(z/T) + w₂ softmax(z) + w₃/K,   w ≥ 0, Σ w = 1

(Zhang, Kailkhura & Han 2020, Mix-n-Match: ensemble and compositional methods for uncertainty calibration in deep
learning, arXiv:2003.07329, §3.2). Like temperature scaling, it changes no prediction; w₃ keeps the NLL of a confident
error finite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics import SMALLEST_PROBABILITY
from trainables.metrics.base import Floats, Integers, softmax64
from trainables.posthoc.base import POSTHOC, Calibrator, validation_data
from trainables.posthoc.temperature import pseudo_count, temperature_by_nll

if TYPE_CHECKING:
    from torch import nn

Objective = Literal["nll", "brier"]

PARAMETERS = ("temperature", "weight_scaled", "weight_plain", "weight_uniform", "converged", "at_bound")


class EnsembleTemperatureCalibrator(Calibrator):
    """A mixture of scaled, plain and uniform probabilities with fitted T and weights."""

    def _probabilities(self, logits: Floats) -> Floats:
        fitted = self.parameters
        mixed = fitted["weight_scaled"] * softmax64(logits / fitted["temperature"])
        mixed += fitted["weight_plain"] * softmax64(logits)
        return np.asarray(mixed + fitted["weight_uniform"] / self.classes)


def ensemble_temperature_layer(calibrator: EnsembleTemperatureCalibrator) -> nn.Module:
    """Return the calibrator as a torch module, for exported programs."""
    import torch  # the import takes two seconds; only exporting needs it

    fitted, classes = dict(calibrator.parameters), calibrator.classes

    class Layer(torch.nn.Module):
        def forward(self, logits: torch.Tensor) -> torch.Tensor:
            """Return probabilities [N, K] for logits [N, K]."""
            scaled = torch.softmax(logits / fitted["temperature"], dim=1) * fitted["weight_scaled"]
            plain = torch.softmax(logits, dim=1) * fitted["weight_plain"]
            return scaled + plain + fitted["weight_uniform"] / classes

    return Layer()


@POSTHOC.add("ensemble_temperature", columns=PARAMETERS, layer=ensemble_temperature_layer, free=lambda k, parameters: 3)
def fit_ensemble_temperature(
    logits: ArrayLike, targets: ArrayLike, *, objective: Objective = "nll"
) -> EnsembleTemperatureCalibrator:
    """A mixture of softmax(z/T), softmax(z) and the uniform distribution.

    Fit ensemble temperature scaling on logits [N, K] and targets [N].

    T minimises the NLL as in temperature scaling. The weights then minimise `objective`, which is convex in the
    weights. If T is at its bound, both fits use smoothed targets.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> calibrator = fit_ensemble_temperature(logits, [0, 0, 1, 1, 1])
        >>> calibrator([[2.0, 0.0]]).round(2)
        array([[0.9, 0.1]])

    Source: Zhang, Kailkhura & Han 2020, arXiv:2003.07329.

    Args:
        logits: validation logits [N, K].
        targets: class indices [N].
        objective: `nll` or `brier`, the paper's two choices [Zhang et al. 2020, 3.2].

    Raises:
        PosthocUnavailable: unusable validation data.
    """
    values, labels = validation_data(logits, targets)
    scaled = temperature_by_nll(values, labels)
    temperature, at_bound = scaled["temperature"], scaled["at_bound"]
    parts = (softmax64(values / temperature), softmax64(values))
    smoothing = pseudo_count(len(labels)) if at_bound else 0.0
    weigh = _weights_by_nll if objective == "nll" else _weights_by_brier
    weights, converged = weigh(parts, labels, smoothing)
    fitted = (temperature, *weights, converged, at_bound)
    parameters = dict(zip(PARAMETERS, map(float, fitted), strict=True))
    return EnsembleTemperatureCalibrator("ensemble_temperature", parameters, values.shape[1])


def _weights_by_nll(parts: tuple[Floats, Floats], targets: Integers, smoothing: float) -> tuple[Floats, bool]:
    rows, (samples, classes) = np.arange(len(targets)), parts[0].shape
    uniform = np.full(len(targets), 1 / classes)
    # Smoothed targets involve all K classes; otherwise the target's probability is enough.
    if smoothing:
        every = np.stack([*parts, np.full(parts[0].shape, 1 / classes)], axis=2).reshape(-1, 3)
        share = np.full((samples, classes), smoothing / classes / samples)
        share[rows, targets] += (1 - smoothing) / samples

        def smoothed(weights: Floats) -> tuple[float, Floats]:
            mixed = np.maximum(every @ weights, SMALLEST_PROBABILITY)
            return -float(share.ravel() @ np.log(mixed)), -(share.ravel() / mixed) @ every

        return _on_simplex(smoothed)
    of_target = np.stack([*(part[rows, targets] for part in parts), uniform], axis=1)

    def loss(weights: Floats) -> tuple[float, Floats]:
        mixed = np.maximum(of_target @ weights, SMALLEST_PROBABILITY)
        return -float(np.log(mixed).mean()), -(of_target / mixed[:, None]).mean(axis=0)

    return _on_simplex(loss)


def _weights_by_brier(parts: tuple[Floats, Floats], targets: Integers, smoothing: float) -> tuple[Floats, bool]:
    """Return the weights with the least Brier score."""
    # The score is quadratic in the weights: inner products of the parts are computed once, not per step.
    samples, classes = parts[0].shape
    every = [*parts, np.full((samples, classes), 1 / classes)]
    products = np.array([[float(np.einsum("nk,nk->", a, b)) for b in every] for a in every]) / samples
    linear = np.array([float(part[np.arange(samples), targets].mean()) for part in every])
    linear = (1 - smoothing) * linear + smoothing / classes
    return _on_simplex(lambda w: (float(w @ products @ w - 2 * linear @ w), 2 * products @ w - 2 * linear))


def _on_simplex(loss: Callable[[Floats], tuple[float, Floats]]) -> tuple[Floats, bool]:
    """Minimise the convex `loss`, which returns value and gradient, over three weights.

    Return weights and convergence.
    """
    from scipy.optimize import minimize

    # The start is close to temperature scaling, but inside the simplex.
    result = minimize(
        loss,
        np.array([0.9, 0.05, 0.05]),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-12, "maxiter": 300},
    )
    # SLSQP meets its constraints only to rounding.
    weights = np.clip(result.x, 0.0, None)
    return weights / weights.sum(), bool(result.success)

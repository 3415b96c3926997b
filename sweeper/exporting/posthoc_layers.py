"""Fitted post-hoc methods as torch modules, so that they can be part of an exported program.

Each maps logits [N, K] in float64 to probabilities [N, K], and equals its calibrator of `trainables.posthoc`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sweeper.core.errors import SweeperError
from trainables.posthoc.base import Calibrator
from trainables.posthoc.ensemble_temperature import EnsembleTemperatureCalibrator
from trainables.posthoc.focal_map import FocalTemperatureCalibrator
from trainables.posthoc.linear import AffineCalibrator

NEAR_MINUS_ONE = -0.99
"""Below this γ, log(1 + γw) cancels where t is small; see `trainables.posthoc.focal_map`."""

SMALLEST_LOG = -1e30
"""What stands for the logarithm of 0, so that its product with γ is finite; within float32, which ONNX writes it in."""


def layer_of(calibrator: Calibrator | None) -> nn.Module:
    """Return a fitted method as a module; of None, the plain softmax.

    Raises:
        SweeperError: the method is not one that torch can compute.
    """
    if calibrator is None:
        return nn.Softmax(dim=1)
    if isinstance(calibrator, FocalTemperatureCalibrator):
        return FocalTemperatureLayer(calibrator.temperature, calibrator.gamma)
    if isinstance(calibrator, AffineCalibrator):
        return AffineLayer(calibrator)
    if isinstance(calibrator, EnsembleTemperatureCalibrator):
        return EnsembleTemperatureLayer(calibrator)
    raise SweeperError(
        f"the post-hoc method {calibrator.name} cannot be part of a torch program: it is computed outside of torch",
        "export temperature, focal_map, focal_temperature, ensemble_temperature, vector, matrix, structured_matrix or "
        "dirichlet, or --posthoc none",
    )


class FocalTemperatureLayer(nn.Module):
    """Ψ^γ(softmax(z/T)): temperature scaling at γ = 0, the focal map at T = 1."""

    def __init__(self, temperature: float, gamma: float) -> None:
        """Keep T and γ."""
        super().__init__()
        self.temperature, self.gamma = temperature, gamma

    def forward(self, logits: Tensor) -> Tensor:
        """Return probabilities [N, K]."""
        log_p = torch.log_softmax((logits - logits.amax(dim=1, keepdim=True)) / self.temperature, dim=1)
        if self.gamma == 0.0:
            return log_p.exp()
        top = torch.zeros_like(log_p, dtype=torch.bool).scatter(1, log_p.argmax(dim=1, keepdim=True), True)
        others = log_p.masked_fill(top, -torch.inf)
        log_t = torch.where(top, others.logsumexp(dim=1, keepdim=True), torch.log1p(-others.exp()))
        log_t = log_t.clamp(min=SMALLEST_LOG / (1.0 + abs(self.gamma)))
        return torch.softmax(log_p - self._log_phi(log_p, log_t), dim=1)

    def _log_phi(self, log_v: Tensor, log_t: Tensor) -> Tensor:
        t = log_t.exp()
        precise = torch.where(t < 0.5, torch.log1p(-t.clamp(max=0.5)), log_v)
        v = precise.exp()
        w = torch.where(v > 0, v * torch.where(t > 0, -precise / t, 1.0), 0.0)
        if self.gamma > NEAR_MINUS_ONE:
            return self.gamma * log_t + torch.log1p(self.gamma * w)
        series = 1 / 2 + t * (1 / 6 + t * (1 / 12 + t * (1 / 20 + t / 30)))
        log_rest = log_t + torch.where(t < 1e-3, series, (1 - w) / t).log()
        factor = math.log1p(self.gamma) if self.gamma > -1 else -math.inf
        return self.gamma * log_t + torch.logaddexp(factor + w.log(), log_rest)


class AffineLayer(nn.Module):
    """softmax(W x + b), x the logits or their log-probabilities at a temperature."""

    weights: Tensor
    bias: Tensor

    def __init__(self, calibrator: AffineCalibrator) -> None:
        """Keep W, b and the temperature of x; 0 stands for raw logits."""
        super().__init__()
        self.register_buffer("weights", torch.from_numpy(calibrator.weights))
        self.register_buffer("bias", torch.from_numpy(calibrator.bias))
        raw = calibrator.name in ("vector", "matrix")
        self.temperature = 0.0 if raw else calibrator.parameters.get("temperature", 1.0)

    def forward(self, logits: Tensor) -> Tensor:
        """Return probabilities [N, K]."""
        features = torch.log_softmax(logits / self.temperature, dim=1) if self.temperature else logits
        scaled = features * self.weights if self.weights.dim() == 1 else features @ self.weights.T
        return torch.softmax(scaled + self.bias, dim=1)


class EnsembleTemperatureLayer(nn.Module):
    """A mixture of softmax(z/T), softmax(z) and the uniform distribution."""

    def __init__(self, calibrator: EnsembleTemperatureCalibrator) -> None:
        """Keep T and the weights."""
        super().__init__()
        self.fitted, self.classes = dict(calibrator.parameters), calibrator.classes

    def forward(self, logits: Tensor) -> Tensor:
        """Return probabilities [N, K]."""
        scaled = torch.softmax(logits / self.fitted["temperature"], dim=1) * self.fitted["weight_scaled"]
        plain = torch.softmax(logits, dim=1) * self.fitted["weight_plain"]
        return scaled + plain + self.fitted["weight_uniform"] / self.classes

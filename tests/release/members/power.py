"""Probabilities to a fixed power."""

from __future__ import annotations

from typing import Annotated

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from trainables.metrics.base import Floats, softmax64
from trainables.posthoc.base import POSTHOC, Calibrator, validation_data


class PowerCalibrator(Calibrator):
    """softmax(power·z)."""

    def _probabilities(self, logits: Floats) -> Floats:
        return softmax64(logits * self.parameters["power"])


class PowerLayer(nn.Module):
    """The same in torch."""

    def __init__(self, calibrator: PowerCalibrator) -> None:
        """Keep the power."""
        super().__init__()
        self.power = calibrator.parameters["power"]

    def forward(self, logits: Tensor) -> Tensor:
        """Return probabilities [N, K]."""
        return torch.softmax(logits * self.power, dim=1)


@POSTHOC.add(
    "power", "probabilities to a power, normalised", "ours", columns=("power",), label="power", layer=PowerLayer
)
def fit_power(logits: ArrayLike, targets: ArrayLike, *, power: Annotated[float, "[0, inf)"] = 2.0) -> PowerCalibrator:
    """Return the calibrator; nothing is fitted.

    Args:
        power: of the probabilities [ours].
    """
    values, _ = validation_data(logits, targets)
    return PowerCalibrator("power", {"power": power}, values.shape[1])

"""Probabilities to a fixed power."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from numpy.typing import ArrayLike

from trainables.metrics.base import Floats, softmax64
from trainables.posthoc.base import POSTHOC, Calibrator, validation_data

if TYPE_CHECKING:
    from torch import nn


class PowerCalibrator(Calibrator):
    """softmax(power·z)."""

    def _probabilities(self, logits: Floats) -> Floats:
        return softmax64(logits * self.parameters["power"])


def power_layer(calibrator: PowerCalibrator) -> nn.Module:
    """Return the same in torch."""
    import torch  # the import takes two seconds; only exporting needs it

    class Layer(torch.nn.Module):
        def forward(self, logits: torch.Tensor) -> torch.Tensor:
            """Return probabilities [N, K]."""
            return torch.softmax(logits * calibrator.parameters["power"], dim=1)

    return Layer()


@POSTHOC.add(
    "power", "probabilities to a power, normalised", "ours", columns=("power",), label="power", layer=power_layer
)
def fit_power(logits: ArrayLike, targets: ArrayLike, *, power: Annotated[float, "[0, inf)"] = 2.0) -> PowerCalibrator:
    """Return the calibrator; nothing is fitted.

    Args:
        power: of the probabilities [ours].
    """
    values, _ = validation_data(logits, targets)
    return PowerCalibrator("power", {"power": power}, values.shape[1])

"""How far an epoch has come: what a checkpoint midway holds beside the weights, so that the rest is unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class EpochProgress:
    """An epoch between its first batch and its last.

    Attributes:
        order: state of the generator of order and augmentation when the epoch began.
        loss_sum: of the losses of samples so far, a scalar on the device.
        batches: so far.
        samples: in them.
        loss_state: of a loss that continues, which the beginning of an epoch would reset; `None` in an epoch from its
            first batch.
    """

    order: Tensor
    loss_sum: Tensor
    batches: int = 0
    samples: int = 0
    loss_state: Mapping[str, Any] | None = None

    def add(self, value: Tensor, samples: int) -> None:
        """Count a batch and its mean loss."""
        self.loss_sum += value * samples
        self.batches += 1
        self.samples += samples

    def state_dict(self) -> dict[str, Any]:
        """Return what to save."""
        return {"loss_sum": self.loss_sum, "batches": self.batches, "samples": self.samples}

    @staticmethod
    def from_state(saved: Mapping[str, Any], device: torch.device) -> EpochProgress | None:
        """Return the epoch in whose midst a replicate was saved; `None` where it was saved between epochs.

        Args:
            saved: `Replicate.state_dict()`.
            device: where it continues.
        """
        progress = saved.get("progress")
        if progress is None:
            return None
        total = progress["loss_sum"].to(device, copy=True)
        return EpochProgress(saved["order"].cpu(), total, progress["batches"], progress["samples"], saved["loss"])

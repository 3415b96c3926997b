"""A quarter of the Brier score."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss


@LOSSES.add("quarter", "a quarter of the Brier score", "Brier 1950")
class Quarter(Loss):
    """A quarter of the squared error of the probability vector."""

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] values."""
        p = torch.softmax(logits, dim=-1)
        return (p.square().sum(-1) - 2 * p.gather(-1, targets.unsqueeze(-1)).squeeze(-1) + 1) / 4

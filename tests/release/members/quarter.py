"""A quarter of the Brier score."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trainables.losses.base import LOSSES, Loss


@LOSSES.add("quarter", "a quarter of the Brier score", "Brier 1950")
class Quarter(Loss):
    """A quarter of the squared error of the probability vector."""

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] values."""
        p = torch.softmax(logits, dim=-1)
        return (p - functional.one_hot(targets, logits.shape[-1])).square().sum(-1) / 4

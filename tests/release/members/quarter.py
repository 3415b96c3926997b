"""A quarter of the Brier score, with focal loss's weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss, Number, true_class
from trainables.registry import Hyperparameter


@LOSSES.add("quarter", "a quarter of the Brier score", "Brier 1950")
@dataclass(eq=False)
class Quarter(Loss):
    """A quarter of the squared error of the probability vector, times (1 − p_y)^focus."""

    focus: Annotated[Number, "[0, inf)", Hyperparameter(quantity="gamma")] = 0.0

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] values."""
        p = torch.softmax(logits, dim=-1)
        chosen = true_class(p, targets)
        return (1 - chosen) ** self.focus * (p.square().sum(-1) - 2 * chosen + 1) / 4

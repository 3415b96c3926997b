"""The Brier score as a training loss."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss


@LOSSES.add("brier")
class Brier(Loss):
    """Squared error between probabilities and the one-hot target, summed over classes.

    Σ_k (p_k − 1[k = y])², a value in [0, 2]: summed over classes, not averaged (Brier 1950; mukhoti §5.1).

    Source: Brier 1950; mukhoti §5.1.
    """

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of the probability vector, [N]."""
        p = torch.softmax(logits, dim=-1)
        minus_one = -torch.ones_like(p[..., :1])
        return p.scatter_add(-1, targets.unsqueeze(-1), minus_one).square().sum(-1)

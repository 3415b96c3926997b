"""Cross-entropy with one constant weight a sample: what aurc and selective_risk become once frozen."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from trainables.losses.base import Loss


class WeightedCrossEntropy(Loss):
    """−w_i log p_y(i) with constant weights [N], valid for the batch the weights were taken from."""

    name = "weighted_cross_entropy"

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights.detach()

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return w_i·CE_i, [N]. Raises ValueError for a batch of another size than the weights'."""
        if len(self.weights) != len(targets):
            raise ValueError(f"{len(self.weights)} frozen weights do not fit a batch of {len(targets)}")
        return self.weights * functional.cross_entropy(logits, targets, reduction="none")

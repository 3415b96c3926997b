"""Cross-entropy: plain, with smoothed labels, and with a constant weight a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional

from trainables.losses.base import LOSSES, Loss, Number, as_type, true_class


@LOSSES.add("cross_entropy", constant_gamma=lambda given: 0.0)  # the focal loss at γ = 0, where Ψ is the identity
class CrossEntropy(Loss):
    """Negative log-likelihood of the true class.

    −log p_y.

    Source: the baseline of all five papers.
    """

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −log p_y, [N]."""
        return functional.cross_entropy(logits, targets, reduction="none")


@LOSSES.add("label_smoothing", constant_gamma=lambda given: 0.0)  # smoothed focal loss at γ = 0 (posterior §6.1, LS)
@dataclass(eq=False)
class LabelSmoothing(Loss):
    """Cross-entropy against softened targets.

    That is −Σ_k v_k log p_k for the softened targets v.

    `form="others"` puts 1 − α on the target and α/(K−1) on each other class (mukhoti §5.1); `form="uniform"`
    mixes in α/K of every class, as torch's `label_smoothing` does, and equals the first at α(K−1)/K.

    Source: mukhoti §5.1.

    Args:
        alpha: it is the share of the target's probability given to other classes; at 1 the target has none
            [mukhoti §5.1].
        form: [mukhoti §5.1].
    """

    takes_lanes = True

    alpha: Annotated[Number, "[0, 1)"] = 0.05
    form: Literal["others", "uniform"] = "others"

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −Σ_k v_k log p_k, [N]."""
        log_p = torch.log_softmax(logits, dim=-1)
        classes = logits.shape[-1]
        alpha = as_type(self.alpha, logits)
        every = alpha / (classes - 1 if self.form == "others" else classes)
        target = 1 - alpha - every if self.form == "others" else 1 - alpha
        return -(target * true_class(log_p, targets) + every * log_p.sum(-1))


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

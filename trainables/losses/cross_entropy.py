"""Cross-entropy: plain, with smoothed labels, and with a constant weight a sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trainables.losses.base import Loss, Number, as_type, true_class
from trainables.registry import Component, Hyperparameter


class CrossEntropy(Loss):
    """−log p_y."""

    name = "cross_entropy"

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return −log p_y, [N]."""
        return functional.cross_entropy(logits, targets, reduction="none")


class LabelSmoothing(Loss):
    """Cross-entropy against softened targets v: −Σ_k v_k log p_k.

    `form="others"` puts 1 − α on the target and α/(K−1) on each other class (mukhoti §5.1); `form="uniform"`
    mixes in α/K of every class, as torch's `label_smoothing` does, and equals the first at α(K−1)/K.
    """

    name = "label_smoothing"
    takes_lanes = True

    def __init__(self, alpha: Number = 0.05, form: str = "others") -> None:
        self.alpha = alpha
        self.form = form

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


COMPONENTS = (
    Component(
        "cross_entropy",
        CrossEntropy,
        summary="negative log-likelihood of the true class",
        source="the baseline of all five papers",
        constant_gamma=lambda given: 0.0,  # the focal loss at γ = 0, where Ψ is the identity
    ),
    Component(
        "label_smoothing",
        LabelSmoothing,
        hyperparameters=(
            Hyperparameter(
                "alpha",
                range="[0, 1)",
                reason="it is the share of the target's probability given to other classes; at 1 the target has none",
                source="mukhoti §5.1",
            ),
            Hyperparameter("form", "text", choices=("others", "uniform"), source="mukhoti §5.1"),
        ),
        summary="cross-entropy against softened targets",
        source="mukhoti §5.1",
        constant_gamma=lambda given: 0.0,  # the smoothed focal loss at γ = 0 (posterior §6.1, LS)
    ),
)

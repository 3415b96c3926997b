"""Cross-entropy, plain and with smoothed labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trainables.losses.base import LOSSES, Loss
from trainables.losses.numerics import Number, as_type, true_class
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


LOSSES.register(
    Component(
        "cross_entropy",
        CrossEntropy,
        summary="negative log-likelihood of the true class",
        source="the baseline of all five papers",
    )
)
LOSSES.register(
    Component(
        "label_smoothing",
        LabelSmoothing,
        hyperparameters=(
            Hyperparameter(
                "alpha",
                default=0.05,
                minimum=0.0,
                maximum=1.0,
                open_maximum=True,
                reason="it is the share of the target's probability given to other classes; at 1 the target has none",
                source="mukhoti §5.1",
            ),
            Hyperparameter("form", "text", default="others", choices=("others", "uniform"), source="mukhoti §5.1"),
        ),
        summary="cross-entropy against softened targets",
        source="mukhoti §5.1",
    )
)

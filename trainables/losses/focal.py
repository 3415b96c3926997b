"""Focal loss, and what all losses of its type share: a weight on log p_y and optional label smoothing."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss
from trainables.losses.numerics import Number, as_type, is_zero, log_complements, smoothed_targets, true_class_logs
from trainables.registry import Component, Hyperparameter


class FocalTypeLoss(Loss):
    """A loss of the form −w(u)^γ log u at the true class's probability u, or against soft targets.

    With `smoothing` α > 0 the target becomes a vector v and the loss −Σ_k v_k w(u_k)^γ log u_k (posterior §6.1).
    Subclasses say what γ·log w is, and may choose γ sample by sample.
    """

    takes_lanes = True

    def __init__(self, smoothing: Number = 0.0, smoothing_form: str = "uniform") -> None:
        self.smoothing = smoothing
        self.smoothing_form = smoothing_form

    def gammas(self, true_log_p: Tensor) -> Number:
        """Return γ: one number, or [N] chosen without gradient from the true classes' log p_y [N].

        Raises:
            TypeError: the subclass does not define it.
        """
        raise TypeError(f"{type(self).__name__} does not say which γ it uses")

    def log_modulation(self, log_p: Tensor, log_complement: Tensor, gamma: Tensor) -> Tensor:
        """Return γ·log w, elementwise, from log u and log(1 − u)."""
        return gamma * log_complement

    def log_modulation_true(
        self, logits: Tensor, targets: Tensor, logs: tuple[Tensor, Tensor], gamma: Tensor
    ) -> Tensor:
        """Return γ·log w [N] of the true classes, whose log p and log(1 − p) are `logs`."""
        return self.log_modulation(*logs, gamma)

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the per-sample losses, [N]."""
        logs = true_class_logs(logits, targets)
        gamma = as_type(self.gammas(logs[0].detach()), logits)
        if is_zero(self.smoothing):
            return -self.log_modulation_true(logits, targets, logs, gamma).exp() * logs[0]
        log_p = torch.log_softmax(logits, dim=-1)
        soft = smoothed_targets(logits, targets, self.smoothing, self.smoothing_form)
        gamma = gamma.unsqueeze(-1) if gamma.dim() else gamma
        weight = self.log_modulation(log_p, log_complements(log_p), gamma).exp()
        return -(soft * weight * log_p).sum(-1)


class Focal(FocalTypeLoss):
    """−(1 − p_y)^γ log p_y (Lin et al. 2017; mukhoti §3)."""

    name = "focal"

    def __init__(self, gamma: Number = 3.0, smoothing: Number = 0.0, smoothing_form: str = "uniform") -> None:
        super().__init__(smoothing, smoothing_form)
        self.gamma = gamma

    def gammas(self, true_log_p: Tensor) -> Number:
        """Return the one γ."""
        return self.gamma


SMOOTHING = (
    Hyperparameter(
        "smoothing",
        default=0.0,
        minimum=0.0,
        maximum=1.0,
        open_maximum=True,
        reason="it is the share of the target's probability given to other classes; at 1 the target has none",
        source="0: one-hot targets; posterior §6.1 uses 0.1 in its label-smoothing paradigm",
    ),
    Hyperparameter(
        "smoothing_form",
        "text",
        default="uniform",
        choices=("others", "uniform"),
        source="posterior §6.1 states no form; `uniform` is torch's own",
    ),
)
NON_NEGATIVE = "a negative γ puts more weight on correctly classified samples; adafocal offers that form"

LOSSES.register(
    Component(
        "focal",
        Focal,
        hyperparameters=(
            Hyperparameter(
                "gamma", default=3.0, minimum=0.0, reason=NON_NEGATIVE, source="mukhoti App. E: best fixed γ by ECE"
            ),
            *SMOOTHING,
        ),
        summary="cross-entropy weighted by (1 − p_y)^γ",
        source="Lin et al. 2017; mukhoti §3",
    )
)

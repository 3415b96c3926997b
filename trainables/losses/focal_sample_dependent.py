"""Focal loss with γ chosen by each sample's probability of the true class (mukhoti §4, FLSD)."""

from __future__ import annotations

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss, widened
from trainables.losses.focal import SMOOTHING, Focal, FocalTypeLoss
from trainables.losses.numerics import Number, true_class_logs
from trainables.registry import Component, Hyperparameter

# variant → the γ below the first boundary of p_y, then (boundary, γ from there on)
POLICIES: dict[str, tuple[float, tuple[tuple[float, float], ...]]] = {
    "flsd_53": (5.0, ((0.2, 3.0),)),
    "flsd_532": (5.0, ((0.2, 3.0), (0.5, 2.0))),
}


class FocalSampleDependent(FocalTypeLoss):
    """Focal loss with γ 5 for p_y < 0.2 and 3 above (FLSD-53), or also 2 from 0.5 (FLSD-532).

    γ is chosen without gradient; the loss jumps where p_y crosses a boundary.
    """

    name = "focal_sample_dependent"

    def __init__(self, variant: str = "flsd_53", smoothing: Number = 0.0, smoothing_form: str = "uniform") -> None:
        super().__init__(smoothing, smoothing_form)
        self.policy = POLICIES[variant]

    def gammas(self, true_log_p: Tensor) -> Number:
        """Return γ of each sample, [N]."""
        lowest, steps = self.policy
        p = true_log_p.exp()
        chosen = torch.full_like(p, lowest)
        for boundary, gamma in steps:
            chosen = torch.where(p >= boundary, gamma, chosen)
        return chosen

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return focal loss with the per-sample γ of these logits."""
        log_p, _ = true_class_logs(widened(logits.detach()), targets)
        return Focal(self.gammas(log_p), self.smoothing, self.smoothing_form)


LOSSES.register(
    Component(
        "focal_sample_dependent",
        FocalSampleDependent,
        hyperparameters=(
            Hyperparameter(
                "variant", "text", default="flsd_53", choices=tuple(POLICIES), source="mukhoti §5.1, App. E"
            ),
            *SMOOTHING,
        ),
        summary="focal loss with a larger γ for samples whose true class is improbable",
        source="mukhoti §4, §5.1, App. E",
    )
)

"""Penalties on logits that trail the largest by more than a margin: one weight (MbLS), or one a class (CALS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from trainables.losses.base import LOSSES, Loss, Number, State, as_type, full_precision, widened

Margin = Annotated[Number, "(0, inf)"]


def distances(logits: Tensor) -> Tensor:
    """Return max_j z_j − z_k of logits [N, K], [N, K]."""
    return logits.max(-1, keepdim=True).values - logits


@LOSSES.add("margin_smoothing")
@dataclass(eq=False)
class MarginSmoothing(Loss):
    """Cross-entropy plus a penalty on logits that trail the largest by more than a margin (MbLS).

    −log p_y + λ·(1/K) Σ_k max(0, max_j z_j − z_k − m). The mean over classes is the released code's; the paper prints
    a sum. Label smoothing pushes all logits together; this leaves distances within the margin alone.

    Source: Liu et al. 2022, The devil is in the margin, arXiv:2111.15430.

    Args:
        weight: λ; a negative one would push logits apart [Liu et al. 2022: 0.1].
        margin: distances below it are free [Liu et al. 2022: 10 on Tiny-ImageNet, 6 on CIFAR-10].
    """

    weight: Annotated[Number, "[0, inf)"] = 0.1
    margin: Margin = 10.0

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropy plus the weighted penalty, [N]."""
        excess = torch.relu(distances(logits) - as_type(self.margin, logits)).mean(-1)
        return functional.cross_entropy(logits, targets, reduction="none") + as_type(self.weight, logits) * excess


@LOSSES.add("cals")
@dataclass(eq=False)
class ClassAdaptive(Loss):
    """Cross-entropy under margins of the logits, with a multiplier for each class from validation data (CALS).

    With h_k = (max_j z_j − z_k)/m − 1 the penalty of class k is λ_k h_k + ρ_k h_k²/2, or −λ_k²/(2ρ_k) where
    λ_k + ρ_k h_k < 0 (the augmented Lagrangian). After each epoch λ_k becomes the validation mean of
    max(0, λ_k + ρ_k h_k), and ρ_k grows by a factor where the mean violation of class k did not fall.

    Source: Liu et al. 2023, Class adaptive network calibration, arXiv:2211.15088.

    Args:
        margin: m, in logits [Liu et al. 2023: 10].
        growth: of ρ; below 1 it would forget constraints that are broken [Liu et al. 2023: 1.2].
    """

    stateful = True

    margin: Margin = 10.0
    growth: Annotated[float, "[1, inf)"] = 1.2

    def __post_init__(self) -> None:
        # one entry serves all classes, whose number the first validation logits tell
        self.multipliers = torch.full((1,), 1e-6, dtype=torch.float64)
        self.stiffness = torch.ones(1, dtype=torch.float64)
        self.violations = torch.full((1,), torch.inf, dtype=torch.float64)

    def _pressure(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return λ + ρh and h, each [N, K], and λ and ρ in their type."""
        rate, stiff = self.multipliers.to(logits), self.stiffness.to(logits)
        h = distances(logits) / as_type(self.margin, logits) - 1
        return rate + stiff * h, h, rate, stiff

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropy plus the penalties of all classes, [N]."""
        pressure, h, rate, stiff = self._pressure(logits)
        penalty = torch.where(pressure >= 0, rate * h + stiff * h.square() / 2, -rate.square() / (2 * stiff))
        return functional.cross_entropy(logits, targets, reduction="none") + penalty.sum(-1)

    def end_epoch(self, val_logits: Tensor, val_targets: Tensor) -> None:
        """Update the multipliers from validation logits [M, K]."""
        with torch.no_grad(), full_precision(val_logits):
            pressure, h, _, stiff = self._pressure(widened(val_logits).double())
            violation = h.mean(0)
            worse = violation > torch.relu(self.violations.to(violation))
            self.multipliers = pressure.clamp(min=0).mean(0).clamp(1e-6, 1e6)
            self.stiffness = torch.where(worse, stiff * self.growth, stiff).clamp(max=1e6)
            self.violations = violation

    def state_dict(self) -> State:
        """Return each class's multiplier, ρ and last mean violation."""
        return {"multipliers": self.multipliers, "stiffness": self.stiffness, "violations": self.violations}

    def restore(self, state: Mapping[str, object]) -> None:
        """Take over what `state_dict` returned."""
        self.multipliers, self.stiffness, self.violations = (
            torch.as_tensor(state[key]) for key in ("multipliers", "stiffness", "violations")
        )

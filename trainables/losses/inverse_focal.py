"""Inverse focal loss: weight on the samples the network is already sure of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Number
from trainables.losses.focal import FocalTypeLoss
from trainables.registry import number_in

# The gradient in p is ≤ 0 everywhere iff γ ≤ (1 + p)/(−p ln p) for all p; the right side is smallest at
# p = W₀(1/e) = 0.278465, where it equals 1/p.
LARGEST_GAMMA = 3.5911214766686221
REVERSES = (
    "above γ = 3.5911 the gradient in p_y turns positive around p_y = 0.278, "
    "so training pushes the true class's probability down; set allow_reversed_gradient: true to allow it"
)


def check_gradient(values: Mapping[str, object]) -> str | None:
    """Return why γ is refused, or `None`: beyond 3.5911 it needs `allow_reversed_gradient`."""
    gamma = number_in(values, "gamma", None)
    if gamma is None or gamma <= LARGEST_GAMMA or values.get("allow_reversed_gradient", False):
        return None
    return f"gamma = {gamma:g} is outside [0, 3.5911]: {REVERSES}"


@LOSSES.add("inverse_focal", check=check_gradient)
@dataclass(eq=False)
class InverseFocal(FocalTypeLoss):
    """Cross-entropy weighted by (1 + p_y)^γ.

    −(1 + p_y)^γ log p_y (selective Def. 3.2).

    `allow_reversed_gradient` changes nothing here; it lets a γ beyond 3.5911 pass the registry's check.

    Source: Wang et al. 2021; selective Def. 3.2.

    Args:
        gamma: [selective Table 2: 1 … 3 selected, 1.5 the middle; limit derived from App. C.2's gradient].
        allow_reversed_gradient: [selective App. E.1: large γ consistently underperforms].
    """

    gamma: Annotated[Number, f"[0, inf): a negative γ would turn it into a focal loss; {REVERSES}"] = 1.5
    allow_reversed_gradient: bool = field(default=False, kw_only=True)

    def log_modulation(self, log_p: Tensor, log_complement: Tensor, gamma: Tensor) -> Tensor:
        """Return γ·log(1 + u)."""
        return gamma * torch.log1p(log_p.exp())

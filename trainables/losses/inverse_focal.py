"""Inverse focal loss: weight on the samples the network is already sure of."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainables.losses.base import Number
from trainables.losses.focal import SMOOTHING, FocalTypeLoss
from trainables.registry import Component, Hyperparameter, number_in

# The gradient in p is ≤ 0 everywhere iff γ ≤ (1 + p)/(−p ln p) for all p; the right side is smallest at
# p = W₀(1/e) = 0.278465, where it equals 1/p.
LARGEST_GAMMA = 3.5911214766686221
REVERSES = (
    "above γ = 3.5911 the gradient in p_y turns positive around p_y = 0.278, "
    "so training pushes the true class's probability down; set allow_reversed_gradient: true to allow it"
)


class InverseFocal(FocalTypeLoss):
    """−(1 + p_y)^γ log p_y (selective Def. 3.2).

    `allow_reversed_gradient` changes nothing here; it lets a γ beyond 3.5911 pass the registry's check.
    """

    name = "inverse_focal"

    def __init__(
        self,
        gamma: Number = 1.5,
        smoothing: Number = 0.0,
        smoothing_form: str = "uniform",
        allow_reversed_gradient: bool = False,
    ) -> None:
        super().__init__(smoothing, smoothing_form)
        self.gamma = gamma
        self.allow_reversed_gradient = allow_reversed_gradient

    def gammas(self, true_log_p: Tensor) -> Number:
        """Return the one γ."""
        return self.gamma

    def log_modulation(self, log_p: Tensor, log_complement: Tensor, gamma: Tensor) -> Tensor:
        """Return γ·log(1 + u)."""
        return gamma * torch.log1p(log_p.exp())


def check_gradient(values: Mapping[str, object]) -> str | None:
    """Return why γ is refused, or `None`: beyond 3.5911 it needs `allow_reversed_gradient`."""
    gamma = number_in(values, "gamma")
    if gamma is None or gamma <= LARGEST_GAMMA or values.get("allow_reversed_gradient", False):
        return None
    return f"gamma = {gamma:g} is outside [0, 3.5911]: {REVERSES}"


COMPONENTS = (
    Component(
        "inverse_focal",
        InverseFocal,
        hyperparameters=(
            Hyperparameter(
                "gamma",
                minimum=0.0,
                reason="a negative γ would turn it into a focal loss; " + REVERSES,
                source="selective Table 2: 1 … 3 selected, 1.5 the middle; limit derived from App. C.2's gradient",
            ),
            *SMOOTHING,
            Hyperparameter(
                "allow_reversed_gradient", "boolean", source="selective App. E.1: large γ consistently underperforms"
            ),
        ),
        summary="cross-entropy weighted by (1 + p_y)^γ",
        source="Wang et al. 2021; selective Def. 3.2",
        check=check_gradient,
    ),
)

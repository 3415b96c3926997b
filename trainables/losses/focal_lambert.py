"""Focal loss with the γ at which its gradient equals cross-entropy's at a chosen probability p₀."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Number
from trainables.losses.focal import FocalTypeLoss
from trainables.registry import Options, number_in

NEWTON_STEPS = 12  # quadratic from a tight bound: float64 accuracy after 6


def _constant_gamma(given: Options) -> float | None:
    """Return γ as a built loss says it, else as it follows from p₀."""
    gamma, p0 = number_in(given, "gamma", None), number_in(given, "p0", None)
    return lambert_gamma(p0).item() if gamma is None and p0 is not None else gamma


@LOSSES.add("focal_lambert", constant_gamma=_constant_gamma)
@dataclass(eq=False)
class FocalLambert(FocalTypeLoss):
    """Focal loss whose gradient equals cross-entropy's at p_y = p₀.

    Focal loss at the constant γ*(p₀) of mukhoti Prop. 2.

    For p_y < p₀ its gradient is larger than cross-entropy's, for p_y > p₀ smaller. γ*(0.2) = 4.851 and
    γ*(0.25) = 3.070, which the paper rounds to 5 and 3.

    Source: mukhoti Prop. 2.

    Args:
        p0: for p₀ ≥ 0.5 the only γ ≥ 0 with equal gradients is 0 [mukhoti §4: γ*(.25) = 3.07, the γ of most
            samples in FLSD-53].
    """

    p0: Annotated[Number, "(0, 0.5)"] = 0.25

    def __post_init__(self) -> None:
        gamma = lambert_gamma(self.p0)
        self.gamma = gamma if isinstance(self.p0, Tensor) else gamma.item()


def lambert_gamma(p0: Number) -> Tensor:
    """Return γ*(p₀) = a/b + W₋₁(−a^(1−a/b)·ln(a)/b)/ln a with a = 1 − p₀, b = p₀ ln p₀ (mukhoti Prop. 2).

    It solves (1−p)^γ − γ p (1−p)^(γ−1) ln p = 1 at p = p₀; W₀ in place of W₋₁ always gives the trivial γ = 0.
    Scalar float64 for 0 < p₀ < 0.5; a tensor p₀ gives its shape.
    """
    p = torch.as_tensor(p0, dtype=torch.float64)
    log_a, b = torch.log1p(-p), p * p.log()
    ratio = (1 - p) / b
    log_argument = (1 - ratio) * log_a - torch.log(-b) + torch.log(-log_a)
    return ratio + lambert_w_minus_one(log_argument) / log_a


def lambert_w_minus_one(log_argument: Tensor) -> Tensor:
    """Return W₋₁(−e^ℓ) for ℓ ≤ −1: the root w ≤ −1 of w + ln(−w) = ℓ, by Newton's method.

    The function is concave and the start, −1 − √(2u) − u with u = −1 − ℓ (Chatzigeorgiou 2013, Theorem 1), lies
    below the root, so the iterates rise to it without overshooting.
    """
    u = (-1 - log_argument).clamp(min=1e-300)
    w = -1 - (2 * u).sqrt() - u
    for _ in range(NEWTON_STEPS):
        w = w - (w + torch.log(-w) - log_argument) / (1 + 1 / w)
    return w

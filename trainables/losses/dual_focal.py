"""Dual focal loss: the weight also depends on the probability of the closest rival class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Number, true_class
from trainables.losses.focal import FocalTypeLoss


@LOSSES.add("dual_focal", cross_entropy_at_zero=("gamma", "smoothing"))
@dataclass(eq=False)
class DualFocal(FocalTypeLoss):
    """Cross-entropy weighted by (1 − p_y + p_j)^γ with p_j of a rival class.

    −(1 − p_y + p_j)^γ log p_y, with gradient through p_j.

    - `variant="ranked_below"`: p_j is the largest probability strictly below p_y, 0 if there is none (Tao et al. 2023
      and its released code).
    - `variant="competitor"`: p_j is the largest probability of the other classes (selective Eq. 24).
    - `variant="conditional"`: as `competitor` where p_y ≥ p_j, else 0. This is the released code as selective Eqs. 25
      and 26 print it ("the competing probability is abruptly discarded"). With two classes it equals `ranked_below`
      except at ties.

    Source: Tao et al. 2023; selective App. C.3.

    Args:
        gamma: a negative γ puts more weight on correctly classified samples; adafocal offers that form; the weight
            reaches 2^γ, which float32 cannot hold beyond 2^127 [selective Table 2: 5 for ResNet-50 on CIFAR-10 and
            CIFAR-100].
        variant: [Tao et al. 2023 and its code; selective Eq. 24, and Eqs. 25 and 26, are the other forms].

    Example:
        >>> logits, target = torch.tensor([[0.1, 0.2, 0.7]]).log(), torch.tensor([1])
        >>> DualFocal(gamma=1.0)(logits, target), DualFocal(gamma=1.0, variant="competitor")(logits, target)
        (tensor(1.4485), tensor(2.4142))
    """

    gamma: Annotated[Number, "[0, 100]"] = 5.0
    variant: Literal["ranked_below", "competitor", "conditional"] = "ranked_below"

    def log_modulation_true(
        self, logits: Tensor, targets: Tensor, logs: tuple[Tensor, Tensor], gamma: Tensor
    ) -> Tensor:
        """Return γ·log(1 − p_y + p_j), [N]."""
        # p_j has a gradient, but the index j has none
        fixed = logits.detach()
        own = true_class(fixed, targets)
        if self.variant == "ranked_below":
            candidates = fixed.masked_fill(fixed >= own.unsqueeze(-1), -math.inf)
        else:
            candidates = fixed.scatter(-1, targets.unsqueeze(-1), -math.inf)
        best = candidates.max(-1)
        present = own >= best.values if self.variant == "conditional" else best.values > -math.inf
        rival = true_class(torch.log_softmax(logits, dim=-1), best.indices)
        return gamma * log_sum(logs[1], rival, present)

    def log_modulation(self, log_p: Tensor, log_complement: Tensor, gamma: Tensor) -> Tensor:
        """Return γ·log(1 − u_k + u_j(k)) of every class k, [N, K]."""
        fixed = log_p.detach()
        rivals = ranks_below(fixed) if self.variant == "ranked_below" else competitors(fixed)
        present = rivals >= 0
        if self.variant == "conditional":
            present = fixed >= fixed.gather(-1, rivals)
        # −1 (no rival) is not an index: any class is used there, and `present` masks it
        return gamma * log_sum(log_complement, log_p.gather(-1, rivals.clamp(min=0)), present)


def log_sum(log_a: Tensor, log_b: Tensor, present: Tensor) -> Tensor:
    """Return log(a + b) where b is present, and log a elsewhere. An absent b gets no gradient."""
    # two `where`: the outer one alone would multiply the gradient of a masked branch by 0, and 0·inf is NaN
    return torch.where(present, torch.logaddexp(log_a, torch.where(present, log_b, log_a)), log_a)


def competitors(values: Tensor) -> Tensor:
    """Return, for each entry of values [N, K], the index of the largest other entry of its row."""
    top = values.topk(2, dim=-1).indices
    own = torch.arange(values.shape[-1], device=values.device)
    return torch.where(own == top[..., :1], top[..., 1:], top[..., :1])


def ranks_below(values: Tensor) -> Tensor:
    """Return, for each entry of values [N, K], the index of the largest strictly smaller entry of its row, or −1."""
    ordered, order = values.sort(dim=-1)
    place = torch.arange(values.shape[-1], device=values.device).expand_as(order)
    # The first of a run of equal values points to its left neighbour; the rest of the run takes the same index.
    starts = torch.cat([torch.zeros_like(order[..., :1]), (ordered.diff(dim=-1) > 0).to(order.dtype)], dim=-1)
    left = torch.cummax(torch.where(starts > 0, place - 1, -1), dim=-1).values
    below = torch.where(left >= 0, order.gather(-1, left.clamp(min=0)), -1)
    return torch.zeros_like(order).scatter(-1, order, below)

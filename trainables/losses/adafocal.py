"""AdaFocal: focal loss whose γ follows the validation set's calibration, bin by bin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss, Number, State, full_precision, true_class_logs, widened
from trainables.losses.focal import FocalTypeLoss

SWITCH = 0.2  # |γ| below which focal and inverse focal loss swap (Ghosh et al. 2022, S_th)
LOWEST, HIGHEST = -2.0, 20.0  # limits of γ (Ghosh et al. 2022)


@dataclass(eq=False)
class SignedFocal(FocalTypeLoss):
    """Focal loss with given γ [N], which can be negative: AdaFocal with the γ of every sample fixed."""

    name = "signed_focal"

    gamma: Number

    def log_modulation(self, log_p: Tensor, log_complement: Tensor, gamma: Tensor) -> Tensor:
        """Return the log weight: γ·log(1 − u) for γ ≥ 0 (focal loss), else |γ|·log(1 + u) (inverse focal loss)."""
        return gamma * torch.where(gamma >= 0, log_complement, -torch.log1p(log_p.exp()))


@LOSSES.add("adafocal")
@dataclass(eq=False)
class AdaFocal(SignedFocal):
    """Focal loss with γ per confidence bin, driven by the validation set's calibration gap.

    −(1 − p_y)^γ log p_y with the γ of the bin that contains p_y; for a negative γ the weight is (1 + p_y)^|γ|.

    After each epoch `end_epoch` splits the validation confidences into bins of equal mass and multiplies the γ of each
    bin by exp(±rate·(confidence − accuracy)), with the sign of γ. Bins keep their γ when their edges move.

    Source: Ghosh et al. 2022 (AdaFocal), Algorithm 1.

    Args:
        gamma: every bin starts here, and γ between −0.2 and 0.2 flips its sign at each update [Ghosh et al.
            2022, Algorithm 1: γ = 1 at the start].
        rate: a negative rate would move γ away from calibration [Ghosh et al. 2022: λ = 1].
        bins: at least one bin is needed [Ghosh et al. 2022: 15 equal-mass bins].

    Example:
        >>> loss = AdaFocal(bins=1)
        >>> loss.end_epoch(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))  # confidence 0.5, accuracy 1
        >>> loss.bin_gammas
        tensor([0.6065], dtype=torch.float64)
    """

    stateful = True
    lanes = "mapped"  # γ is looked up in the bins of one network

    gamma: Annotated[Number, f"[{SWITCH}, {HIGHEST}]"] = 1.0
    rate: Annotated[Number, "[0, inf)"] = 1.0
    bins: Annotated[int, "[1, inf)"] = 15

    def __post_init__(self) -> None:
        self.bin_gammas = torch.as_tensor(self.gamma, dtype=torch.float64).unsqueeze(-1).expand(self.bins)
        # equal widths until the first validation; every bin has the same γ until then
        self.edges = torch.linspace(0, 1, self.bins + 1, dtype=torch.float64)[1:-1]

    def gammas(self, true_log_p: Tensor) -> Number:
        """Return the γ of each sample's bin, [N]: bins are half-open, [l, u), and the outer bins are unbounded."""
        p = true_log_p.exp().unsqueeze(-1)
        index = (p >= self.edges.to(p)).sum(-1)
        return self.bin_gammas.to(p).gather(0, index)

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the loss with the per-sample γ of these logits."""
        log_p, _ = true_class_logs(widened(logits.detach()), targets)
        return SignedFocal(self.gammas(log_p), smoothing=self.smoothing, smoothing_form=self.smoothing_form)

    def end_epoch(self, val_logits: Tensor, val_targets: Tensor) -> None:
        """Update γ and edges of all bins from validation logits [M, K] and targets [M]."""
        with torch.no_grad(), full_precision(val_logits):
            top = torch.softmax(widened(val_logits).double(), dim=-1).max(-1)
            right = (top.indices == val_targets).double()
            gaps, self.edges = bin_gaps(top.values, right, self.bin_gammas.shape[-1])
            self.bin_gammas = updated_gammas(self.bin_gammas.to(gaps.device), self.rate, gaps)

    def state_dict(self) -> State:
        """Return γ per bin and the inner edges."""
        return {"gammas": self.bin_gammas, "edges": self.edges}

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore γ and edges."""
        self.bin_gammas = torch.as_tensor(state["gammas"])
        self.edges = torch.as_tensor(state["edges"])


def bin_gaps(confidences: Tensor, right: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Return confidence − accuracy of equal-mass bins [bins] and the inner edges [bins − 1].

    The sorted confidences are split as evenly as possible; the first bins can hold one more. An inner edge is the
    smallest confidence of the bin above it. An empty bin has gap 0, and no probability reaches its edge.
    """
    # Tied confidences share their outcomes: otherwise the order of the samples would decide which bin they count in.
    _, group, sizes = confidences.unique(return_inverse=True, return_counts=True)
    mean = right.new_zeros(len(sizes)).index_add(0, group, right) / sizes
    order = confidences.argsort()
    ordered_confidences = confidences[order].tensor_split(bins)
    ordered_right = mean[group[order]].tensor_split(bins)
    zero = confidences.new_zeros(())
    unreachable = confidences.new_full((), torch.inf)
    gaps = [c.mean() - r.mean() if len(c) else zero for c, r in zip(ordered_confidences, ordered_right, strict=True)]
    edges = [c[0] if len(c) else unreachable for c in ordered_confidences[1:]]
    return torch.stack(gaps), torch.stack(edges) if edges else confidences.new_zeros(0)


def updated_gammas(gammas: Tensor, rate: Number, gaps: Tensor) -> Tensor:
    """Return γ·exp(±rate·gap) clipped to [−2, 20]; where |γ| falls below 0.2 it becomes ∓0.2 (Ghosh et al. 2022)."""
    sign = torch.where(gammas >= 0, 1.0, -1.0)
    updated = (gammas * torch.exp(sign * rate * gaps)).clamp(LOWEST, HIGHEST)
    # A multiplication never changes the sign: without the jump, γ would approach 0 and stay there.
    return torch.where(updated.abs() < SWITCH, -sign * SWITCH, updated)

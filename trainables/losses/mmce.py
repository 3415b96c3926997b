"""Cross-entropy with the maximum mean calibration error as a penalty (Kumar et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional

from trainables.losses.base import LOSSES, Loss, Number, as_type, widened

KERNEL_WIDTH = 0.4  # of the Laplacian kernel (Kumar et al. 2018)


@LOSSES.add("mmce", apart=["right"])
@dataclass(eq=False)
class MaximumMeanCalibrationError(Loss):
    """Cross-entropy plus a kernel penalty on calibration error; quadratic in the batch size.

    CE + λ·√(aᵀK a) with K_ij = exp(−|c_i − c_j|/0.4) over the top confidences c (Kumar et al. 2018).

    `variant="plain"`: a_i = (r_i − c_i)/N. `variant="weighted"`: right samples have (1 − c_i)/|C|, wrong ones
    −c_i/|W|, so each group counts as a whole; an empty group has no terms. Which samples are right is a constant.
    The root has gradient 0 at 0. Cost is O(N²) in the batch.

    `form="released"` is the penalty of focal_calibration's code, behind mukhoti's tables. Its weighted variant divides
    by |C|², |W|² and |C||W| twice, so a_i is (1 − c_i)/|C|² or −c_i/|W|², and is 0 where a group is empty: 64 times
    weaker on a batch of 128 with half of it right, 4 to 20 times with nine tenths. Its plain variant has no root.

    Source: Kumar et al. 2018; mukhoti §5.1; `Losses/mmce.py` of github.com/torrvision/focal_calibration.

    Args:
        weight: a negative weight would reward miscalibration [mukhoti App. D: λ = 2 for images, 8 for documents].
        variant: [Kumar et al. 2018 train with the weighted form].
        form: the formula of the paper or of the released code [Kumar et al. 2018].
        right: of `frozen`, which samples are right.
    """

    batch_coupled = True

    weight: Annotated[Number, "[0, inf)"] = 2.0
    variant: Literal["weighted", "plain"] = "weighted"
    form: Literal["paper", "released"] = "paper"
    right: Tensor | None = None

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return cross-entropy plus the weighted penalty, a scalar, for logits [N, K] and targets [N]."""
        penalty = calibration_penalty(logits, self._right(logits, targets), self.variant, self.form)
        return functional.cross_entropy(logits, targets) + as_type(self.weight, logits) * penalty

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the loss with the indicators of right samples fixed; nothing else is treated as constant."""
        right = self._right(widened(logits.detach()), targets)
        return MaximumMeanCalibrationError(self.weight, self.variant, self.form, right)

    def _right(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.argmax(-1) == targets if self.right is None else self.right


def calibration_penalty(logits: Tensor, right: Tensor, variant: str, form: str = "paper") -> Tensor:
    """Return √(aᵀK a), a scalar, for logits [N, K] and booleans `right` [N]; aᵀK a for the released plain variant."""
    confidence = torch.softmax(logits, dim=-1).max(-1).values
    correct = right.to(logits.dtype)
    rights, wrongs = correct.sum(), (1 - correct).sum()
    if variant == "plain":
        residual = (correct - confidence) / len(confidence)
    else:
        power = 2 if form == "released" else 1  # the release takes means over the pairs, then divides by their number
        shares = rights.clamp(min=1) ** power, wrongs.clamp(min=1) ** power
        residual = torch.where(right, (1 - confidence) / shares[0], -confidence / shares[1])
    kernel = torch.exp(-(confidence.unsqueeze(-1) - confidence).abs() / KERNEL_WIDTH)
    square = (residual * (kernel * residual).sum(-1)).sum()
    if form == "released" and variant == "plain":
        return square
    positive = (square > 0) & ((form == "paper") | ((rights > 0) & (wrongs > 0)))
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)

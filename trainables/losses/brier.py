"""The Brier score as a training loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss


@LOSSES.add("brier")
@dataclass(eq=False)
class Brier(Loss):
    """Squared error between probabilities and the one-hot target, summed over classes.

    Σ_k (p_k − 1[k = y])², a value in [0, 2]: summed over classes, not averaged (Brier 1950; mukhoti §5.1).

    `form="released"` divides a batch's mean by its size. focal_calibration's code sums every loss over the batch before
    it clips gradients, but averages Brier's: with the recipe's `reduction: sum` this form has that code's gradients.
    Per-sample values and curvature stay those of the paper's form.

    Source: Brier 1950; mukhoti §5.1; `Losses/brier_score.py` of github.com/torrvision/focal_calibration.

    Args:
        form: the formula of the paper or of the released code [mukhoti §5.1].
    """

    form: Literal["paper", "released"] = "paper"

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the batch; the released form divides it by the batch's size."""
        mean = self.values(logits, targets).mean()
        return mean / targets.shape[-1] if self.form == "released" else mean

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of the probability vector, [N]."""
        p = torch.softmax(logits, dim=-1)
        minus_one = -torch.ones_like(p[..., :1])
        return p.scatter_add(-1, targets.unsqueeze(-1), minus_one).square().sum(-1)

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the paper's form, whose mean over samples does not depend on how they are batched."""
        return Brier()

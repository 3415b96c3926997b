"""MDCA: a penalty on the gap of each class's mean probability and its frequency in the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from trainables.losses.base import LOSSES, Loss, Number, as_type
from trainables.losses.focal import Focal


@LOSSES.add("mdca")
@dataclass(eq=False)
class MultiClassDifference(Loss):
    """Focal loss or cross-entropy, plus the mean gap over classes of confidence and frequency in the batch.

    FL_γ + β·(1/K) Σ_k |(1/N) Σ_i p_ik − (1/N) Σ_i 1[y_i = k]|.

    Source: Hebbalaguppe et al. 2022, A stitch in time saves nine, arXiv:2203.13834.

    Args:
        weight: β; a negative one would reward miscalibration [Hebbalaguppe et al. 2022 search from 1 on].
        gamma: of the focal loss that it is added to; a negative γ puts more weight on correctly classified samples [0:
            cross-entropy; Hebbalaguppe et al. 2022 search 1 to 3].
    """

    batch_coupled = True

    weight: Annotated[Number, "[0, inf)"] = 1.0
    gamma: Annotated[Number, "[0, inf)"] = 0.0

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, a scalar, for logits [N, K] and targets [N]."""
        one_hot = (torch.arange(logits.shape[-1], device=logits.device) == targets.unsqueeze(-1)).to(logits)
        gap = (torch.softmax(logits, dim=-1).mean(0) - one_hot.mean(0)).abs().mean()
        return Focal(self.gamma).value(logits, targets) + as_type(self.weight, logits) * gap

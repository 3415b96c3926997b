"""Cross-entropy weighted by confidence rank: the area under the risk–coverage curve as a training loss."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from trainables.losses.base import (
    LOSSES,
    SCORE_NAMES,
    Loss,
    confidence_score,
    full_precision,
    score_from_log_probabilities,
    true_class,
)
from trainables.losses.cross_entropy import WeightedCrossEntropy


@LOSSES.add("aurc")
class AreaUnderRiskCoverage(Loss):
    """Cross-entropy weighted by confidence rank in the batch.

    (1/n) Σ_i α_r(i)·CE_i, r the rank of sample i by confidence score, ascending in the batch.

    α_r = ψ(n+1) − ψ(n−r+1), whose mean is exactly 1 at every batch size n; ties share their mean weight. The
    weights carry no gradient (selective Def. 3.3).

    Source: selective Def. 3.3; Zhou et al. 2024.

    Args:
        score: [selective App. A, Table 1 lists all three].
    """

    batch_coupled = True
    takes_soft_targets = True

    def __init__(self, score: Annotated[str, SCORE_NAMES] = "msp") -> None:
        self.score = score

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return α_i·CE_i, [N]; each depends on the whole batch through its rank."""
        log_p = torch.log_softmax(logits, dim=-1)
        weights = rank_weights(score_from_log_probabilities(self.score, log_p.detach()))
        return weights * -true_class(log_p, targets)

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return cross-entropy with the weights of these logits' ranks."""
        with torch.no_grad(), full_precision(logits):
            return WeightedCrossEntropy(rank_weights(confidence_score(self.score, logits)))


def rank_weights(scores: Tensor) -> Tensor:
    """Return α of each score [N], in the scores' type: α_r = Σ_{m=n−r+1}^{n} 1/m, averaged over ties."""
    n = len(scores)
    ordered, order = scores.sort()
    by_rank = torch.arange(n, 0, -1, device=scores.device, dtype=torch.float64).reciprocal().cumsum(0)
    run = torch.cat([torch.zeros_like(order[:1]), (ordered.diff() > 0).to(order.dtype)]).cumsum(0)
    empty = torch.zeros(n, device=scores.device, dtype=torch.float64)
    means = empty.scatter_add(0, run, by_rank) / empty.scatter_add(0, run, torch.ones_like(by_rank)).clamp(min=1)
    return empty.scatter(0, order, means.gather(0, run)).to(scores.dtype)

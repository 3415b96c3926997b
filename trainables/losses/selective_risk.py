"""Cross-entropy weighted by the rank of confidence.

The selective-risk (AU) loss gives more confident samples more weight. AURC is the area under the risk–coverage curve as
a training loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from trainables.losses.base import (
    LOSSES,
    SCORE_NAMES,
    Loss,
    Number,
    State,
    as_type,
    confidence_score,
    full_precision,
    score_from_log_probabilities,
    true_class,
)
from trainables.losses.cross_entropy import WeightedCrossEntropy

BINS = 64  # over [0, 1]; finer bins change the smoothed survival less than ν does (selective Alg. 1 has 64, too)


@LOSSES.add("selective_risk", tags={"stateful"})
@dataclass(eq=False)
class SelectiveRisk(Loss):
    """Cross-entropy weighted by rank among the less confident samples, evenly above a threshold (AU loss).

    (1/n) Σ_i β_i·CE_i with β_i = −ln S(min(g_i, τ)) (selective Eqs. 13–17, Alg. 1).

    g is the confidence score and τ its `coverage`-quantile in the batch. S is the survival function
    S(x) = (1/n) Σ_k h_k σ((c_k − x)/ν) of the scores' histogram h with bin centres c, clamped to [1/(n+1), n/(n+1)].
    Counts, τ and S(τ) carry no gradient; β has one only where g_i < τ (App. C.4). The cost is O(n·bins).

    The mean weight is about `coverage`, because Eq. 12 drops the 1/P(g < τ) of Eq. 9; `normalise=True` divides by
    `coverage`. This holds while the scores spread over many bins and over many times ν. In a saturated network most
    scores share the last bin and τ has no effect: at `coverage` .8 the mean weight is 1.0 with ν .01 and .75 with ν .1
    (logits with standard deviations 10 and 30, ten classes). In the limit, the mean weight is the same at every
    coverage.

    `history="epoch"` adds up the counts of the epoch's batches: a call with gradients enabled adds its batch;
    `per_sample` and `frozen` do not. Nothing is stored under `torch.func` transforms; `observe` adds a batch from
    outside them.

    If ν is small compared with the spread of the scores, the gradient through β, of order CE/ν, dominates the gradient
    of cross-entropy. It can then hold an untrained network at uniform probabilities. If accuracy stays at chance, raise
    `nu` (0.3 … 1 with `msp`), lower `coverage`, or use another score.

    Source: selective Eqs. 13–17, Alg. 1.

    Args:
        coverage: share of a batch that counts as low-confidence; at 0 every weight is nearly 0
            [selective Table 3: .8 or .9 on CIFAR, .2 and .4 for transformers on Tiny-ImageNet].
        nu: the smoothing sigmoid is divided by it; below, its slope overflows [selective App. E.2: .1 on
            CIFAR-10; tuned on scores of another scale, so search up to 1].
        score: [selective App. A, Table 1 lists all three].
        history: [selective Eqs. 14–15: the batch].
        normalise: [selective Eq. 12 as printed].

    Example:
        >>> logits, targets = torch.tensor([[0.1, 0.0], [1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0, 0])
        >>> values = SelectiveRisk(coverage=1.0).per_sample(logits, targets)
        >>> values / torch.nn.functional.cross_entropy(logits, targets, reduction="none")  # β of each sample
        tensor([0.2877, 0.6964, 1.3863])
    """

    batch_coupled = True

    coverage: Annotated[Number, "(0, 1]"] = 0.8
    nu: Annotated[Number, "[1e-06, inf)"] = 0.1
    score: Annotated[str, SCORE_NAMES] = "msp"
    history: Literal["batch", "epoch"] = "batch"
    normalise: bool = False

    def __post_init__(self) -> None:
        self.stateful = self.history == "epoch"
        self.counts = torch.zeros(BINS, dtype=torch.float64)

    @property
    def takes_soft_targets(self) -> bool:
        """Whether soft targets can be used: not with a history, which would count a batch twice."""
        return not self.stateful

    def value(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of β_i·CE_i, and add the batch to the epoch's histogram for `history="epoch"`."""
        terms, batch_counts = self._terms(logits, targets)
        # A tensor inside a torch.func transform must not outlive it; torch 2.13 has no public test for such a tensor.
        if self.stateful and torch.is_grad_enabled() and not torch._C._functorch.is_functorch_wrapped_tensor(logits):
            self._add(batch_counts)
        return terms.mean()

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return β_i·CE_i, [N]; every value depends on the whole batch through β."""
        return self._terms(logits, targets)[0]

    def observe(self, logits: Tensor) -> None:
        """Add a batch's scores to the epoch's histogram (`history="epoch"`) when the call itself cannot."""
        with torch.no_grad(), full_precision(logits):
            self._add(histogram(confidence_score(self.score, logits)))

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return the loss with the counts and τ of these logits; β still has a gradient."""
        with torch.no_grad(), full_precision(logits):
            scores = confidence_score(self.score, logits)
            return SelectiveRiskAt(self, self._all_counts(histogram(scores)), quantile(scores, self.coverage))

    def begin_epoch(self, epoch: int, max_epochs: int) -> None:
        """Clear the counts."""
        self.counts = torch.zeros_like(self.counts)

    def state_dict(self) -> State:
        """Return the counts of the epoch so far, for `history="epoch"`."""
        return {"counts": self.counts} if self.stateful else {}

    def restore(self, state: Mapping[str, object]) -> None:
        """Restore the counts."""
        if self.stateful:
            self.counts = torch.as_tensor(state["counts"])

    def _terms(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(logits, dim=-1)
        scores = score_from_log_probabilities(self.score, log_p)
        batch_counts = histogram(scores.detach())
        return self._weights(scores, batch_counts) * -true_class(log_p, targets), batch_counts

    def _add(self, batch_counts: Tensor) -> None:
        self.counts = self.counts.to(batch_counts.device) + batch_counts

    def _weights(self, scores: Tensor, batch_counts: Tensor) -> Tensor:
        return self.weights_at(scores, self._all_counts(batch_counts), quantile(scores.detach(), self.coverage))

    def _all_counts(self, batch_counts: Tensor) -> Tensor:
        return batch_counts + self.counts.to(batch_counts.device) if self.stateful else batch_counts

    def weights_at(self, scores: Tensor, counts: Tensor, threshold: Tensor) -> Tensor:
        """Return β_i [N] of scores [N] for a histogram's counts [BINS] and τ."""
        # `where` instead of `minimum`, which would share the gradient between equal arguments: at τ there must be none
        below = torch.where(scores < threshold, scores, threshold)
        # within [1/(n+1), n/(n+1)], the logarithm stays finite and no weight is 0 (selective Alg. 1)
        survived = survival(below, counts.to(scores.dtype), as_type(self.nu, scores))
        weights = -survived.clamp(1 / (len(scores) + 1), len(scores) / (len(scores) + 1)).log()
        return weights / as_type(self.coverage, scores) if self.normalise else weights


@dataclass(eq=False)
class SelectiveRiskAt(Loss):
    """The selective-risk loss with the histogram and τ of one batch, for which it is a mean of independent terms."""

    name = "selective_risk_at"

    loss: SelectiveRisk
    counts: Tensor
    threshold: Tensor

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return β_i·CE_i, [N]."""
        log_p = torch.log_softmax(logits, dim=-1)
        scores = score_from_log_probabilities(self.loss.score, log_p)
        return self.loss.weights_at(scores, self.counts, self.threshold) * -true_class(log_p, targets)


def histogram(scores: Tensor) -> Tensor:
    """Return the counts [BINS] (float64) of scores in half-open bins of equal width over [0, 1]; 1 is in the last."""
    index = (scores * BINS).long().clamp(0, BINS - 1)  # exact: BINS is a power of two
    # float64 counts integers exactly; `bincount` has no batching rule under vmap
    counts = torch.zeros(BINS, dtype=torch.float64, device=scores.device)
    return counts.scatter_add(0, index, torch.ones_like(scores, dtype=torch.float64))


def survival(points: Tensor, counts: Tensor, nu: Tensor) -> Tensor:
    """Return S [N] at points [N]: the share of the counted scores above each, smoothed by σ(·/ν)."""
    centres = (torch.arange(BINS, device=points.device, dtype=points.dtype) + 0.5) / BINS
    return (torch.sigmoid((centres - points.unsqueeze(-1)) / nu) * counts).sum(-1) / counts.sum()


def quantile(values: Tensor, level: Number) -> Tensor:
    """Return the `level`-quantile of values [N], interpolated linearly between order statistics.

    A plain level needs two selections in O(N); a tensor with one level per lane needs a sort.

    Example:
        >>> quantile(torch.tensor([3.0, 1.0, 2.0]), 0.25)
        tensor(1.5000)
    """
    last = len(values) - 1
    if not isinstance(level, Tensor):
        # the two order statistics around the level; `torch.quantile` would sort
        low = min(math.floor(level * last), last)
        lower = values.kthvalue(low + 1).values
        return lower + (level * last - low) * (values.kthvalue(min(low + 1, last) + 1).values - lower)
    ordered = values.sort().values
    position = as_type(level, values) * last
    at = position.floor().long().clamp(0, last)
    lower = ordered.gather(0, at.reshape(1)).squeeze(0)
    upper = ordered.gather(0, (at + 1).clamp(max=last).reshape(1)).squeeze(0)
    return lower + (position - at) * (upper - lower)


@LOSSES.add("aurc")
class AreaUnderRiskCoverage(Loss):
    """Cross-entropy weighted by confidence rank in the batch.

    (1/n) Σ_i α_r(i)·CE_i, with r the rank of sample i by confidence score, ascending in the batch.

    α_r = ψ(n+1) − ψ(n−r+1) has mean 1 at every batch size n; tied samples share their mean weight. The weights carry no
    gradient (selective Def. 3.3).

    Source: selective Def. 3.3; Zhou et al. 2024.

    Args:
        score: [selective App. A, Table 1 lists all three].

    Example:
        >>> logits, targets = torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0])
        >>> AreaUnderRiskCoverage().per_sample(logits, targets)  # log 2 times 1/2, and 0.3133 times 3/2
        tensor([0.3466, 0.4699])
    """

    batch_coupled = True
    takes_soft_targets = True  # the weights depend on the scores alone, not on the targets

    def __init__(self, score: Annotated[str, SCORE_NAMES] = "msp") -> None:
        self.score = score

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return α_i·CE_i, [N]; every value depends on the whole batch through its rank."""
        log_p = torch.log_softmax(logits, dim=-1)
        weights = rank_weights(score_from_log_probabilities(self.score, log_p.detach()))
        return weights * -true_class(log_p, targets)

    def frozen(self, logits: Tensor, targets: Tensor) -> Loss:
        """Return cross-entropy with the weights of these logits' ranks."""
        with torch.no_grad(), full_precision(logits):
            return WeightedCrossEntropy(rank_weights(confidence_score(self.score, logits)))


def rank_weights(scores: Tensor) -> Tensor:
    """Return the weight α of each score [N], in their type: α_r = Σ_{m=n−r+1}^{n} 1/m, averaged over ties.

    Example:
        >>> rank_weights(torch.tensor([0.9, 0.5, 0.5]))
        tensor([1.8333, 0.5833, 0.5833])
    """
    n = len(scores)
    ordered, order = scores.sort()
    # ψ(n+1) − ψ(n−r+1) is a sum of reciprocals: a cumulative sum in float64 gives all ranks without cancellation
    by_rank = torch.arange(n, 0, -1, device=scores.device, dtype=torch.float64).reciprocal().cumsum(0)
    run = torch.cat([torch.zeros_like(order[:1]), (ordered.diff() > 0).to(order.dtype)]).cumsum(0)
    # as many slots as samples, not as runs of ties: under vmap no shape may depend on the data
    empty = torch.zeros(n, device=scores.device, dtype=torch.float64)
    means = empty.scatter_add(0, run, by_rank) / empty.scatter_add(0, run, torch.ones_like(by_rank)).clamp(min=1)
    return empty.scatter(0, order, means.gather(0, run)).to(scores.dtype)

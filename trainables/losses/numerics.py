"""Logarithms of probabilities that stay accurate at both ends, targets of label smoothing, and confidence scores.

Every function takes logits or log-probabilities [N, K], keeps their type and works under `torch.func.vmap`
(no shape depends on data).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Number = float | Tensor


def true_class_logs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y and log(1 − p_y), each [N].

    With the log-odds m = z_y − logsumexp_{k≠y} z_k these are log σ(m) and log σ(−m): both keep full relative
    accuracy as p_y → 0 and p_y → 1, and are finite for every finite logit.
    """
    index = targets.unsqueeze(-1)
    others = logits.scatter(-1, index, -math.inf).logsumexp(-1)
    log_odds = logits.gather(-1, index).squeeze(-1) - others
    return functional.logsigmoid(log_odds), functional.logsigmoid(-log_odds)


def true_class(values: Tensor, targets: Tensor) -> Tensor:
    """Return [N], the entry of `values` [N, K] at each target."""
    return values.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def log_complements(log_probabilities: Tensor) -> Tensor:
    """Return log(1 − p_k) [N, K] in O(K).

    A class that is not the largest has p_k ≤ 1/2, where log1p(−p_k) is accurate; for the largest, 1 − p is the
    sum of the others.
    """
    top = log_probabilities.argmax(-1, keepdim=True)
    rest = log_probabilities.scatter(-1, top, -math.inf)
    return torch.log1p(-rest.exp()).scatter(-1, top, rest.logsumexp(-1, keepdim=True))


def smoothed_targets(like: Tensor, targets: Tensor, amount: Number, form: str) -> Tensor:
    """Return soft targets [N, K].

    `others`: 1 − α on the target and α/(K−1) elsewhere (mukhoti §5.1). `uniform`: α/K everywhere and 1 − α more
    on the target (the form of torch's own `label_smoothing`). An `amount` [L, 1] is that of logits [L, N, K].
    """
    classes = like.shape[-1]
    amount = amount.unsqueeze(-1) if isinstance(amount, Tensor) and amount.dim() else amount
    elsewhere = amount / (classes - 1 if form == "others" else classes)
    on_target = 1.0 - amount if form == "others" else 1.0 - amount + elsewhere
    one_hot = torch.arange(classes, device=like.device) == targets.unsqueeze(-1)
    return torch.where(one_hot, as_type(on_target, like), as_type(elsewhere, like))


def as_type(number: Number, like: Tensor) -> Tensor:
    """Return a number or tensor as a tensor of the type and device of `like`."""
    if isinstance(number, Tensor):
        return number.to(like)
    return torch.full((), number, dtype=like.dtype, device=like.device)  # filled there: nothing to copy or wait for


def is_zero(number: Number) -> bool:
    """Return whether a plain number is 0; a tensor never counts, for its values may differ between lanes."""
    return not isinstance(number, Tensor) and number == 0


def maximum_softmax_probability(log_probabilities: Tensor) -> Tensor:
    """Return max_k p_k for log-probabilities [N, K] → [N]."""
    return log_probabilities.max(-1).values.exp()


def softmax_margin(log_probabilities: Tensor) -> Tensor:
    """Return p₍₁₎ − p₍₂₎, the lead of the most probable class over the next, for [N, K] → [N]."""
    top = log_probabilities.topk(2, dim=-1).values.exp()
    return top[..., 0] - top[..., 1]


def negative_entropy(log_probabilities: Tensor) -> Tensor:
    """Return 1 + Σ_k p_k log p_k / log K for [N, K] → [N]: 0 for uniform probabilities, 1 for a one-hot vector."""
    classes = log_probabilities.shape[-1]
    raw = 1 + (log_probabilities.exp() * log_probabilities).sum(-1) / math.log(classes)
    return raw.clamp(0, 1)  # rounding may leave [0, 1] by one unit in the last place


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "msp": maximum_softmax_probability,
    "margin": softmax_margin,
    "negative_entropy": negative_entropy,
}
SCORE_NAMES: tuple[str, ...] = tuple(SCORES)


def score_from_log_probabilities(name: str, log_probabilities: Tensor) -> Tensor:
    """Return the confidence score `name` of log-probabilities [N, K] as [N] in [0, 1].

    Raises:
        ValueError: the name is none of `SCORE_NAMES`.
    """
    if name not in SCORES:
        raise ValueError(f"unknown confidence score {name!r}; known: {', '.join(SCORE_NAMES)}")
    return SCORES[name](log_probabilities)


def confidence_score(name: str, logits: Tensor) -> Tensor:
    """Return the confidence score `name` of logits [N, K] as [N] in [0, 1], in float32 or wider.

    `msp` is the largest softmax probability, `margin` the largest less the second largest, `negative_entropy`
    Σ p log p mapped from [−log K, 0] to [0, 1] (selective, App. A, Table 1). The softmax is applied once.

    Raises:
        ValueError: the name is none of `SCORE_NAMES`.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return score_from_log_probabilities(name, torch.log_softmax(wide, dim=-1))

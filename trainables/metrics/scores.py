"""Confidence scores: how sure a classifier is of a sample, as one number in [0, 1] that grows with confidence."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


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

"""Multinomial logistic regression."""

from __future__ import annotations

import math

from torch import nn

from trainables.models.base import ARCHITECTURES


@ARCHITECTURES.add("linear", "logistic regression", "ours")
def linear(input_shape: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
    """Build one affine layer, [N, *input_shape] -> [N, classes].

    Args:
        bias: whether a constant is added [ours].
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes, bias))

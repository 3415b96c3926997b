"""Multinomial logistic regression."""

from __future__ import annotations

import math

from torch import nn

from trainables.registry import Component, Hyperparameter


def linear(input_shape: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
    """Build one affine layer, [N, *input_shape] -> [N, classes]."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes, bias))


COMPONENTS = (
    Component("linear", linear, (Hyperparameter("bias", "boolean", source="ours"),), "logistic regression", "ours"),
)

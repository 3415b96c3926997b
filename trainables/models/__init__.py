"""Architectures by name. Adding one: write a file with `COMPONENTS` and list it here."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainables.models import mlp, resnet_cifar
from trainables.registry import Registry

ARCHITECTURES = Registry("architecture")

for _family in (mlp, resnet_cifar):
    for _component in _family.COMPONENTS:
        ARCHITECTURES.register(_component)


def build_model(name: str, input_shape: tuple[int, ...], classes: int, **hyperparameters: Any) -> nn.Module:
    """Build architecture `name`: a module from inputs [N, *input_shape] to logits [N, classes].

    Weights are drawn from PyTorch's global generator: seed it before.

    Args:
        name: a name of `ARCHITECTURES`.
        input_shape: shape of one sample, e.g. (3, 32, 32).
        classes: number of classes K.
        hyperparameters: what the architecture's component lists.

    Raises:
        ValueError: unknown name, invalid hyperparameters, or an input shape the network cannot take.
    """
    return ARCHITECTURES.build(name, tuple(input_shape), classes, **hyperparameters)

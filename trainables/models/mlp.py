"""Multilayer perceptron."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Annotated

from torch import nn

from trainables.models.base import ARCHITECTURES


@ARCHITECTURES.add("mlp")
def mlp(
    input_shape: tuple[int, ...],
    classes: int,
    depth: Annotated[int, "[0, inf)"] = 2,
    width: Annotated[int, "[1, inf)"] = 100,
    bias: bool = True,
) -> nn.Sequential:
    """Fully connected network of `depth` hidden layers, `width` units each.

    Build a fully connected ReLU network, [N, *input_shape] -> [N, classes].

    The curvature paper's "2-layer, hidden 100" is read as two hidden layers of 100 units each.

    Source: curvature.

    Args:
        input_shape: shape of one sample; flattened.
        classes: number of classes K.
        depth: number of hidden layers; 0 gives multinomial logistic regression [curvature, section on Tr(H)
            regularisation].
        width: units of each hidden layer [curvature, section on Tr(H) regularisation].
        bias: whether layers have biases; depth 0 without biases is the classifier of mukhoti's App. B [mukhoti App. B
            trains without a bias].

    Example:
        >>> mlp((1, 8, 8), 10, depth=0)
        Sequential(
          (flatten): Flatten(start_dim=1, end_dim=-1)
          (classifier): Linear(in_features=64, out_features=10, bias=True)
        )
    """
    # named: keys of a state dict say which layer they belong to
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    features = math.prod(input_shape)
    for layer in range(1, depth + 1):
        layers[f"hidden{layer}"] = nn.Linear(features, width, bias=bias)
        layers[f"activation{layer}"] = nn.ReLU()
        features = width
    layers["classifier"] = nn.Linear(features, classes, bias=bias)
    return nn.Sequential(layers)

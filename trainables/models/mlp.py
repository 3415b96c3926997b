"""Multilayer perceptron."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from trainables.registry import Component, Hyperparameter


def mlp(
    input_shape: tuple[int, ...], classes: int, depth: int = 2, width: int = 100, bias: bool = True
) -> nn.Sequential:
    """Build a fully connected ReLU network, [N, *input_shape] -> [N, classes].

    The curvature paper's "2-layer, hidden 100" is read as two hidden layers of 100 units each.

    Args:
        input_shape: shape of one sample; flattened.
        classes: number of classes K.
        depth: number of hidden layers; 0 gives multinomial logistic regression.
        width: units of each hidden layer.
        bias: whether layers have biases; depth 0 without is mukhoti's App. B classifier.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    features = math.prod(input_shape)
    for layer in range(1, depth + 1):
        layers[f"hidden{layer}"] = nn.Linear(features, width, bias=bias)
        layers[f"activation{layer}"] = nn.ReLU()
        features = width
    layers["classifier"] = nn.Linear(features, classes, bias=bias)
    return nn.Sequential(layers)


COMPONENTS = (
    Component(
        "mlp",
        mlp,
        (
            Hyperparameter("depth", "integer", minimum=0, source="curvature, section on Tr(H) regularisation"),
            Hyperparameter("width", "integer", minimum=1, source="curvature, section on Tr(H) regularisation"),
            Hyperparameter("bias", "boolean", source="mukhoti App. B trains without a bias"),
        ),
        summary="fully connected network of `depth` hidden layers, `width` units each",
        source="curvature",
    ),
)

"""A network of one's own: a multilayer perceptron whose hidden units are gated."""

import math
from itertools import pairwise

from torch import Tensor, nn


class GatedMlp(nn.Module):
    """Gated linear units (Dauphin et al. 2017, arXiv:1612.08083) between flattened inputs and logits."""

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: int = 32, depth: int = 1) -> None:
        super().__init__()
        sizes = [math.prod(input_shape), *[width] * depth]
        gated = [(nn.Linear(before, 2 * after), nn.GLU()) for before, after in pairwise(sizes)]
        self.features = nn.Sequential(nn.Flatten(), *(layer for pair in gated for layer in pair))
        self.classifier = nn.Linear(sizes[-1], classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits [N, classes] of inputs [N, *input_shape]."""
        return self.classifier(self.features(inputs))

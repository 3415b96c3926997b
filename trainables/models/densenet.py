"""Densely connected networks with bottlenecks and compression for small images: DenseNet-121.

Huang et al., "Densely Connected Convolutional Networks", 2017, Table 1, with the 7x7 stem and its pooling replaced
by one 3x3 convolution, as mukhoti trains it on CIFAR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import ARCHITECTURES, conv1x1, conv3x3, initialise, require_image


class DenseLayer(nn.Module):
    """Normalise, activate, 1x1 to four growth rates, normalise, activate, 3x3 to one; concatenated to the input."""

    def __init__(self, in_channels: int, growth: int) -> None:
        """Create a layer that adds `growth` channels."""
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv1x1(in_channels, 4 * growth)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = conv3x3(4 * growth, growth)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, C + growth, H, W]."""
        hidden = self.conv1(functional.relu(self.bn1(inputs)))
        return torch.cat([inputs, self.conv2(functional.relu(self.bn2(hidden)))], 1)


class Transition(nn.Module):
    """Halve channels with a 1x1 convolution and each side with 2x2 average pooling."""

    def __init__(self, in_channels: int) -> None:
        """Create a transition from `in_channels` to half of them."""
        super().__init__()
        self.bn = nn.BatchNorm2d(in_channels)
        self.conv = conv1x1(in_channels, in_channels // 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, C / 2, H / 2, W / 2]."""
        return functional.avg_pool2d(self.conv(functional.relu(self.bn(inputs))), 2)


class DenseNet(nn.Module):
    """The network, [N, C, H, W] -> [N, K]."""

    def __init__(self, in_channels: int, classes: int, blocks: Sequence[int], growth: int) -> None:
        """Create dense blocks of `blocks[i]` layers, a transition between each two."""
        super().__init__()
        features = 2 * growth
        layers: list[nn.Module] = [conv3x3(in_channels, features)]
        for block, count in enumerate(blocks):
            if block > 0:
                layers.append(Transition(features))
                features //= 2
            for _ in range(count):
                layers.append(DenseLayer(features, growth))
                features += growth
        self.blocks = nn.Sequential(*layers)
        self.bn = nn.BatchNorm2d(features)
        self.classifier = nn.Linear(features, classes)
        initialise(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.classifier(functional.relu(self.bn(self.blocks(inputs))).mean((2, 3)))
        return logits


#: Stand-in for these networks in a rehearsal.
SMALL = {"name": "densenet", "layers": 1, "growth": 4}


@ARCHITECTURES.add("densenet", stand_in=SMALL)
def _even_densenet(
    input_shape: tuple[int, ...],
    classes: int,
    layers: Annotated[int, "[1, inf)"] = 6,
    growth: Annotated[int, "[2, inf)"] = 12,
) -> DenseNet:
    """DenseNet of four equal blocks for small images, of any size.

    Build a DenseNet of four blocks of `layers` layers each. Raises as `densenet`.

    Source: Huang et al. 2017.

    Args:
        layers: [our choice: DenseNet-121's first block].
        growth: [Huang et al. 2017, section 4.2].
    """
    return densenet(input_shape, classes, (layers,) * 4, growth)


@ARCHITECTURES.add(
    "densenet121", "DenseNet-121, stem for small images", "mukhoti; Huang et al. 2017", apart=["blocks"], stand_in=SMALL
)
def densenet(
    input_shape: tuple[int, ...],
    classes: int,
    blocks: Sequence[int] = (6, 12, 24, 16),
    growth: Annotated[int, "[2, inf)"] = 32,
) -> DenseNet:
    """Build a DenseNet; (6, 12, 24, 16) is DenseNet-121.

    Args:
        growth: [Huang et al. 2017, Table 1].

    Raises:
        ValueError: the shape is not an image of at least 8x8 (three transitions halve it).
    """
    in_channels, _, _ = require_image(input_shape, minimum_side=8, network="densenet121")
    return DenseNet(in_channels, classes, blocks, growth)

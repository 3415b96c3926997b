"""Convolutional networks for small images other than ResNets: VGG-19, MobileNet-v2 and DenseNet-121.

VGG-19: Simonyan and Zisserman 2015, Table 1, column E, each convolution followed by batch normalisation. One fully
connected layer replaces the three, because five poolings leave a single pixel of a 32x32 image.

MobileNet-v2: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018, Table 2, with strides of 1
in the stem and in the second stage, so that a 32x32 image still has 4x4 pixels before pooling.

DenseNet-121: Huang et al., "Densely Connected Convolutional Networks", 2017, Table 1, with the 7x7 stem and its pooling
replaced by one 3x3 convolution, as mukhoti trains it on CIFAR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import ARCHITECTURES, conv1x1, conv3x3, initialise, require_image

COLUMN_E = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels and convolutions before each pooling


@ARCHITECTURES.add("vgg19")
class VGG(nn.Module):
    """VGG-19 with batch normalisation for 32x32 images.

    Source: curvature; Simonyan & Zisserman 2015, Table 1, column E.

    Args:
        width: [Simonyan & Zisserman 2015].

    Raises:
        ValueError: the shape is not an image of at least 32x32 (five poolings halve it).
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: Annotated[float, "(0, inf)"] = 1.0) -> None:
        """Create the network with `width` times the channels of column E."""
        super().__init__()
        layers: list[nn.Module] = []
        features, _, _ = require_image(input_shape, minimum_side=32, network="vgg19")
        for base, convolutions in COLUMN_E:
            channels = max(1, round(base * width))  # a rehearsal's width rounds 64 channels down to few, never to 0
            for _ in range(convolutions):
                layers += [nn.Conv2d(features, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
                features = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(features, classes)
        initialise(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.classifier(self.features(inputs).mean((2, 3)))
        return logits


# expansion, channels, blocks, stride (Table 2; the 24-channel stage has stride 2 there)
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM_CHANNELS = 32
LAST_CHANNELS = 1280


def convolution(in_channels: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return convolution, batch normalisation and ReLU6."""
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(),  # robust in low-precision arithmetic (Sandler et al. 2018)
    )


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel by 3x3, project by 1x1; a shortcut if the shape is unchanged (Fig. 3b)."""

    def __init__(self, in_channels: int, channels: int, stride: int, expansion: int) -> None:
        """Create a block from `in_channels` to `channels`."""
        super().__init__()
        inner = in_channels * expansion
        # Without expansion, as in the first stage of Table 2, there is no 1x1 convolution.
        layers: list[nn.Module] = [] if expansion == 1 else [convolution(in_channels, inner, 1)]
        layers += [
            convolution(inner, inner, 3, stride, groups=inner),
            # linear bottleneck: no activation after the projection, which would lose information (section 3.2)
            nn.Conv2d(inner, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        ]
        self.layers = nn.Sequential(*layers)
        self.keeps_shape = stride == 1 and in_channels == channels

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, in_channels, H, W] to [N, channels, H / stride, W / stride]."""
        outputs: Tensor = self.layers(inputs)
        return inputs + outputs if self.keeps_shape else outputs


@ARCHITECTURES.add("mobilenet_v2")
class MobileNetV2(nn.Module):
    """MobileNet-v2, strides for small images.

    Source: curvature; Sandler et al. 2018, Table 2.

    Args:
        width: [Sandler et al. 2018].

    Raises:
        ValueError: the shape is not an image of at least 8x8 (three stages halve it).
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: Annotated[float, "(0, inf)"] = 1.0) -> None:
        """Create the network with `width` times the channels of Table 2; the last layer does not shrink below 1,280."""
        super().__init__()
        in_channels, _, _ = require_image(input_shape, minimum_side=8, network="mobilenet_v2")
        features = max(1, round(STEM_CHANNELS * width))
        layers: list[nn.Module] = [convolution(in_channels, features, 3)]
        for expansion, base, blocks, stage_stride in STAGES:
            channels = max(1, round(base * width))
            for block in range(blocks):
                layers.append(InvertedResidual(features, channels, stage_stride if block == 0 else 1, expansion))
                features = channels
        # multipliers below 1 do not apply to the last convolution (Sandler et al. 2018)
        last = max(LAST_CHANNELS, round(LAST_CHANNELS * width))
        layers.append(convolution(features, last, 1))
        self.layers = nn.Sequential(*layers)
        self.classifier = nn.Linear(last, classes)
        initialise(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.classifier(self.layers(inputs).mean((2, 3)))
        return logits


class DenseLayer(nn.Module):
    """Normalise, activate, 1x1 to 4·growth channels, normalise, activate, 3x3 to growth; concatenated to the input."""

    def __init__(self, in_channels: int, growth: int) -> None:
        """Create a layer that adds `growth` channels."""
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv1x1(in_channels, 4 * growth)  # the bottleneck of DenseNet-B (section 3)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = conv3x3(4 * growth, growth)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, C + growth, H, W]."""
        hidden = self.conv1(functional.relu(self.bn1(inputs)))
        return torch.cat([inputs, self.conv2(functional.relu(self.bn2(hidden)))], 1)


class Transition(nn.Module):
    """Halve channels with a 1x1 convolution and each side with 2x2 average pooling."""

    def __init__(self, in_channels: int) -> None:
        """Create a transition from `in_channels` to half as many."""
        super().__init__()
        self.bn = nn.BatchNorm2d(in_channels)
        self.conv = conv1x1(in_channels, in_channels // 2)  # compression 0.5, as in DenseNet-C (section 3)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, C / 2, H / 2, W / 2]."""
        return functional.avg_pool2d(self.conv(functional.relu(self.bn(inputs))), 2)


class DenseNet(nn.Module):
    """Dense blocks with transitions between them, pooling, one linear layer: [N, C, H, W] -> [N, K]."""

    def __init__(self, in_channels: int, classes: int, blocks: Sequence[int], growth: int) -> None:
        """Create dense blocks of `blocks[i]` layers, with a transition between consecutive blocks."""
        super().__init__()
        features = 2 * growth  # Huang et al. 2017, section 3
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


@ARCHITECTURES.add("densenet")
def _even_densenet(
    input_shape: tuple[int, ...],
    classes: int,
    layers: Annotated[int, "[1, inf)"] = 6,
    growth: Annotated[int, "[2, inf)"] = 12,
) -> DenseNet:
    """DenseNet of four equal blocks for small images, of any size.

    Build a DenseNet of four blocks of `layers` layers each; errors are those of `densenet`.

    Source: Huang et al. 2017.

    Args:
        layers: [our choice: DenseNet-121's first block].
        growth: [Huang et al. 2017, section 4.2].
    """
    return densenet(input_shape, classes, (layers,) * 4, growth)


@ARCHITECTURES.add("densenet121", "DenseNet-121, stem for small images", "mukhoti; Huang et al. 2017", apart=["blocks"])
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

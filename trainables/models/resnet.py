"""Residual networks with a stem for small images: ResNet-18 to ResNet-152, and ResNet-8 to ResNet-110 of depth 6n+2.

He et al., "Deep Residual Learning for Image Recognition", 2016. ResNet-18 to ResNet-152 follow Table 1, but one 3x3
convolution of stride 1 replaces the 7x7 stride-2 convolution and the max-pool. All five papers train them in this form
on 32x32 images. The networks of depth 6n+2 are those of section 4.2: a 3x3 stem without pooling, three stages of n
basic blocks with 16, 32 and 64 channels, global average pooling and one linear layer. The posterior paper trains these.

mukhoti's released code calls Bottleneck [3, 4, 26, 3] "ResNet-110"; here it is `resnet110_bottleneck`, because
ResNet-110 is the 6n+2 network of basic blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import (
    ARCHITECTURES,
    BasicBlock,
    conv1x1,
    conv3x3,
    initialise,
    projection,
    require_image,
    staged,
)
from trainables.registry import BrokenRule, number_in

EXPANSION = 4  # ratio of a bottleneck's output channels to its inner ones (He et al. 2016, Table 1)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with a shortcut around them (He et al. 2016, Fig. 5 right)."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        """Create a block from `in_channels` to `4 * channels`; the 3x3 convolution strides."""
        super().__init__()
        self.conv1 = conv1x1(in_channels, channels)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        # the stride is in the 3x3 convolution, as in torchvision; He et al. stride in the first 1x1
        self.conv3 = conv1x1(channels, EXPANSION * channels)
        self.bn3 = nn.BatchNorm2d(EXPANSION * channels)
        self.shortcut = projection(in_channels, EXPANSION * channels, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, in_channels, H, W] to [N, 4 * channels, H / stride, W / stride]."""
        hidden = functional.relu(self.bn1(self.conv1(inputs)))
        hidden = functional.relu(self.bn2(self.conv2(hidden)))
        return functional.relu(self.bn3(self.conv3(hidden)) + self.shortcut(inputs))


class ResNet(nn.Module):
    """A 3x3 stem, stages of blocks, average pooling, one linear layer: [N, C, H, W] -> [N, K]."""

    def __init__(
        self,
        in_channels: int,
        classes: int,
        stem_channels: int,
        block: Callable[[int, int, int], nn.Module],
        stages: Iterable[tuple[int, int]],
        expansion: int = 1,
        pool: int = 1,
    ) -> None:
        """Create the network; `block`, `stages` and `expansion` are as in `staged`; `pool` is the pooled maps' side."""
        super().__init__()
        self.conv1 = conv3x3(in_channels, stem_channels)
        self.bn1 = nn.BatchNorm2d(stem_channels)
        self.blocks, features = staged(block, stem_channels, stages, expansion)
        self.pool = pool
        self.classifier = nn.Linear(features * pool**2, classes)
        initialise(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        hidden = self.blocks(functional.relu(self.bn1(self.conv1(inputs))))
        if self.pool == 1:
            # equal to adaptive pooling to one pixel
            pooled = hidden.mean((2, 3))
        else:
            pooled = torch.flatten(functional.adaptive_avg_pool2d(hidden, self.pool), 1)
        logits: Tensor = self.classifier(pooled)
        return logits


def resnet(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    name: str,
    blocks: Sequence[int],
    bottleneck: bool,
    width: Annotated[float, "(0, inf)"] = 1.0,
    pool: Annotated[int, "[1, inf)"] = 1,
) -> ResNet:
    """Build a residual network of four stages; see the module.

    Args:
        input_shape: (channels, height, width); sides of at least 8 * pool pixels, because three stages halve them.
        classes: number of classes K.
        name: name in messages.
        blocks: number of blocks in each of the four stages.
        bottleneck: whether blocks are bottlenecks instead of basic blocks.
        width: factor on the channels [curvature: ResNet-18 at 1 and 2].
        pool: side of the average pooling's output [mukhoti's released code pools Tiny-ImageNet to 2x2].

    Raises:
        ValueError: the shape is not an image of at least that size.

    Example:
        >>> network = resnet((3, 32, 32), 10, name="resnet18", blocks=(2, 2, 2, 2), bottleneck=False, width=0.125)
        >>> network.classifier
        Linear(in_features=64, out_features=10, bias=True)
    """
    in_channels, _, _ = require_image(input_shape, minimum_side=8 * pool, network=name)
    stages = [(max(1, round(base * width)), count) for base, count in zip((64, 128, 256, 512), blocks, strict=True)]
    block, expansion = (Bottleneck, EXPANSION) if bottleneck else (BasicBlock, 1)
    return ResNet(in_channels, classes, stages[0][0], block, stages, expansion, pool)


for _name, _blocks, _bottleneck, _summary, _source in (
    ("resnet18", (2, 2, 2, 2), False, "ResNet-18, stem for small images", "curvature"),
    ("resnet34", (3, 4, 6, 3), False, "ResNet-34, stem for small images", "He et al. 2016, Table 1"),
    ("resnet50", (3, 4, 6, 3), True, "ResNet-50, stem for small images", "mukhoti, selective"),
    ("resnet101", (3, 4, 23, 3), True, "ResNet-101, stem for small images", "He et al. 2016, Table 1"),
    ("resnet152", (3, 8, 36, 3), True, "ResNet-152, stem for small images", "He et al. 2016, Table 1"),
    ("resnet110_bottleneck", (3, 4, 26, 3), True, "the network that mukhoti's code calls ResNet-110", "mukhoti"),
):
    _build = partial(resnet, name=_name, blocks=_blocks, bottleneck=_bottleneck)
    ARCHITECTURES.add(_name, _summary, _source)(_build)


# the depths in the papers: 8 in the posterior paper, the others in He et al.'s Table 6
DEPTHS = (8, 20, 32, 44, 56, 110)


class IdentityShortcut(nn.Module):
    """Option A of He et al.: every second pixel, new channels zero; no parameters."""

    def __init__(self, new_channels: int, stride: int) -> None:
        """Create a shortcut that adds `new_channels` zero channels and keeps every `stride`-th pixel."""
        super().__init__()
        self.new_channels = new_channels
        self.stride = stride

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, C, H, W] to [N, C + new_channels, ceil(H / stride), ceil(W / stride)]."""
        return functional.pad(inputs[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


def _identity_block(features: int, channels: int, stride: int) -> BasicBlock:
    shortcut = None if features == channels else IdentityShortcut(channels - features, stride)
    return BasicBlock(features, channels, stride, shortcut)


def three_stages(width: float, blocks: int) -> list[tuple[int, int]]:
    """Return channels and blocks of three stages: `width` times 16, 32 and 64 channels, `blocks` blocks each."""
    # at least one channel, also for the small width of a rehearsal
    return [(max(1, round(base * width)), blocks) for base in (16, 32, 64)]


def depth_fault(
    values: Mapping[str, object], default: int = 20, beyond: int = 2, valid: str = "8, 14, 20, 26, 32"
) -> BrokenRule | None:
    """Return the error for a depth that is not 6n + `beyond`, with the examples `valid`, or `None`."""
    depth = number_in(values, "depth", default)
    if depth < 6 + beyond or (depth - beyond) % 6:
        return "depth", f"depth = {depth} must be 6n+{beyond} with n of at least 1: {valid}, ..."
    return None


@ARCHITECTURES.add("resnet_cifar", check=depth_fault)
def resnet_cifar(
    input_shape: tuple[int, ...],
    classes: int,
    depth: Annotated[int, "[8, inf)"] = 20,
    width: Annotated[float, "(0, inf)"] = 1.0,
    shortcut: Literal["identity", "projection"] = "identity",
) -> ResNet:
    """ResNet of any depth 6n+2, basic blocks, for small images.

    Build a 6n+2 residual network of basic blocks; see the module.

    Source: He et al. 2016, section 4.2.

    Args:
        input_shape: (channels, height, width); sides of at least 4 pixels, because two stages halve them.
        classes: number of classes K.
        depth: weighted layers, 6n+2 [He et al. 2016, section 4.2].
        width: factor on the channels 16, 32, 64 [He et al. 2016, section 4.2].
        shortcut: `identity` (option A, the published CIFAR networks) or `projection` (option B, 1x1 convolutions)
            [He et al. 2016, section 4.2 (option A)].

    Raises:
        ValueError: the shape is not an image of at least 4x4.

    Example:
        >>> sum(weights.numel() for weights in resnet_cifar((3, 32, 32), 10, depth=20).parameters())  # 0.27 M
        269722
    """
    in_channels, _, _ = require_image(input_shape, minimum_side=4, network=f"resnet{depth}")
    stages = three_stages(width, (depth - 2) // 6)
    return ResNet(in_channels, classes, stages[0][0], _identity_block if shortcut == "identity" else BasicBlock, stages)


for _depth in DEPTHS:
    ARCHITECTURES.add(
        f"resnet{_depth}",
        f"ResNet-{_depth} (6n+2) of basic blocks for small images",
        "He et al. 2016, section 4.2; posterior",
    )(partial(resnet_cifar, depth=_depth))

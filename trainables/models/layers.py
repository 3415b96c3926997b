"""Pieces that several networks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv3x3(in_channels: int, channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution without bias that keeps the size at stride 1."""
    return nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)


def conv1x1(in_channels: int, channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 1x1 convolution without bias."""
    return nn.Conv2d(in_channels, channels, 1, stride, bias=False)


def projection(in_channels: int, channels: int, stride: int) -> nn.Module:
    """Return He et al.'s option B shortcut: nothing where shapes agree, else a normalised 1x1 convolution."""
    if stride == 1 and in_channels == channels:
        return nn.Identity()
    return nn.Sequential(conv1x1(in_channels, channels, stride), nn.BatchNorm2d(channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut around both (He et al. 2016, Fig. 5 left)."""

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: nn.Module | None = None) -> None:
        """Create a block from `in_channels` to `channels`; `shortcut` defaults to `projection`."""
        super().__init__()
        self.conv1 = conv3x3(in_channels, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = projection(in_channels, channels, stride) if shortcut is None else shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, in_channels, H, W] to [N, channels, H / stride, W / stride]."""
        hidden = functional.relu(self.bn1(self.conv1(inputs)))
        return functional.relu(self.bn2(self.conv2(hidden)) + self.shortcut(inputs))


@torch.no_grad()
def initialise(network: nn.Module) -> None:
    """Draw convolutions from N(0, 2 / fan_out) (He et al. 2015, as torchvision does); the rest stays PyTorch's."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

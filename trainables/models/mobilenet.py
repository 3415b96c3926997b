"""MobileNet-v2 for small images.

Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018, Table 2, with strides of 1 in the
stem and in the second stage, so that a 32x32 image still has 4x4 pixels before pooling.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from trainables.models.base import ARCHITECTURES, initialise, require_image

# expansion, channels, blocks, stride (Table 2; the 24-channel stage has stride 2 there)
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM_CHANNELS = 32
LAST_CHANNELS = 1280


def convolution(in_channels: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return convolution, batch normalisation and ReLU6."""
    return nn.Sequential(
        nn.Conv2d(in_channels, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU6(),
    )


class InvertedResidual(nn.Module):
    """Expand by 1x1, filter each channel by 3x3, project by 1x1; a shortcut where the shape stays (Fig. 3b)."""

    def __init__(self, in_channels: int, channels: int, stride: int, expansion: int) -> None:
        """Create a block from `in_channels` to `channels`."""
        super().__init__()
        inner = in_channels * expansion
        layers: list[nn.Module] = [] if expansion == 1 else [convolution(in_channels, inner, 1)]
        layers += [
            convolution(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        ]
        self.layers = nn.Sequential(*layers)
        self.keeps_shape = stride == 1 and in_channels == channels

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, in_channels, H, W] to [N, channels, H / stride, W / stride]."""
        outputs: Tensor = self.layers(inputs)
        return inputs + outputs if self.keeps_shape else outputs


@ARCHITECTURES.add("mobilenet_v2", stand_in={"name": "mobilenet_v2", "width": 0.125})
class MobileNetV2(nn.Module):
    """MobileNet-v2, strides for small images.

    Source: curvature; Sandler et al. 2018.

    Args:
        width: [Sandler et al. 2018].

    Raises:
        ValueError: the shape is not an image of at least 8x8 (three stages halve it).
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: Annotated[float, "(0, inf)"] = 1.0) -> None:
        """Create the network with `width` times the channels of Table 2; the last layer never shrinks."""
        super().__init__()
        in_channels, _, _ = require_image(input_shape, minimum_side=8, network="mobilenet_v2")
        features = max(1, round(STEM_CHANNELS * width))
        layers: list[nn.Module] = [convolution(in_channels, features, 3)]
        for expansion, base, blocks, stage_stride in STAGES:
            channels = max(1, round(base * width))
            for block in range(blocks):
                layers.append(InvertedResidual(features, channels, stage_stride if block == 0 else 1, expansion))
                features = channels
        last = max(LAST_CHANNELS, round(LAST_CHANNELS * width))
        layers.append(convolution(features, last, 1))
        self.layers = nn.Sequential(*layers)
        self.classifier = nn.Linear(last, classes)
        initialise(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.classifier(self.layers(inputs).mean((2, 3)))
        return logits

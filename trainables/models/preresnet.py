"""Pre-activation residual networks for small images: PreResNet-56 of basic blocks and of bottlenecks; wide networks.

He et al., "Identity Mappings in Deep Residual Networks", 2016: normalisation and activation come before each
convolution. Depth counts 6n+2 layers of basic blocks. The selective paper's released code gives the name "PreResNet-56"
to a network with n = (56 - 2) / 6 = 9 *bottlenecks* a stage (9n+2 = 83 layers by its authors' rule); here it is
`preresnet56_bottleneck`. Its shortcuts that change the shape project the block's raw input; He et al. project the
activated one (section 4.1). `shortcut: raw` builds the shortcuts of that code; the default is those of He et al.

Wide residual networks (Zagoruyko and Komodakis, "Wide Residual Networks", 2016) are pre-activation networks with k
times 16, 32, 64 channels after a stem of 16, of depth 6n+4. mukhoti's released WRN-26-10 has post-activation blocks and
counts its depth as 6n+2: four blocks a stage, like WRN-28-10.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated

from torch import Tensor, nn
from torch.nn import functional

from trainables.models.base import ARCHITECTURES, BasicBlock, conv1x1, conv3x3, initialise, require_image, staged
from trainables.models.resnet import EXPANSION, ResNet, depth_fault, three_stages

ACTIVATED, RAW = "activated", "raw"


class PreActivationBlock(nn.Module):
    """Normalise, activate, convolve: twice 3x3, or 1x1, 3x3, 1x1 for a bottleneck.

    If the shape changes, the shortcut is a 1x1 convolution of the activated or the raw input.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int,
        bottleneck: bool = False,
        dropout: float = 0.0,
        shortcut: str = ACTIVATED,
    ) -> None:
        """Create a block; a bottleneck ends with `4 * channels`; `dropout` acts before the second convolution."""
        super().__init__()
        out_channels = channels * EXPANSION if bottleneck else channels
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv1x1(in_channels, channels) if bottleneck else conv3x3(in_channels, channels, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = conv3x3(channels, channels, stride if bottleneck else 1)
        # identities keep the attributes of both kinds of block the same; they have no weights
        self.bn3: nn.Module = nn.BatchNorm2d(channels) if bottleneck else nn.Identity()
        self.conv3: nn.Module = conv1x1(channels, out_channels) if bottleneck else nn.Identity()
        self.bottleneck = bottleneck
        self.projects_raw = shortcut == RAW
        self.changes_shape = stride != 1 or in_channels != out_channels
        self.shortcut: nn.Module = conv1x1(in_channels, out_channels, stride) if self.changes_shape else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, in_channels, H, W] to [N, out_channels, H / stride, W / stride]."""
        activated = functional.relu(self.bn1(inputs))
        hidden = self.dropout(functional.relu(self.bn2(self.conv1(activated))))
        hidden = self.conv2(hidden)
        if self.bottleneck:
            hidden = self.conv3(functional.relu(self.bn3(hidden)))
        shortcut: Tensor = self.shortcut(activated if self.changes_shape and not self.projects_raw else inputs)
        outputs: Tensor = hidden + shortcut
        return outputs


class PreActivationResNet(nn.Module):
    """Stem, three stages of pre-activation blocks, final normalisation, pooling: [N, C, H, W] -> [N, K]."""

    def __init__(
        self,
        in_channels: int,
        classes: int,
        stem_channels: int,
        stages: Iterable[tuple[int, int]],
        bottleneck: bool = False,
        dropout: float = 0.0,
        shortcut: str = ACTIVATED,
    ) -> None:
        """Create the network; `stages` has the inner channels and the number of blocks of each stage."""
        super().__init__()
        self.conv1 = conv3x3(in_channels, stem_channels)
        block = partial(PreActivationBlock, bottleneck=bottleneck, dropout=dropout, shortcut=shortcut)
        self.blocks, features = staged(block, stem_channels, stages, EXPANSION if bottleneck else 1)
        self.bn = nn.BatchNorm2d(features)
        self.classifier = nn.Linear(features, classes)
        initialise(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        # the last block's sum was not activated yet (He et al. 2016, Identity Mappings, Appendix)
        hidden = functional.relu(self.bn(self.blocks(self.conv1(inputs))))
        logits: Tensor = self.classifier(hidden.mean((2, 3)))
        return logits


@ARCHITECTURES.add("preresnet", check=partial(depth_fault, default=56))
def preresnet(
    input_shape: tuple[int, ...],
    classes: int,
    depth: Annotated[int, "[8, inf)"] = 56,
    width: Annotated[float, "(0, inf)"] = 1.0,
    bottleneck: bool = False,
    shortcut: Annotated[str, (ACTIVATED, RAW)] = ACTIVATED,
) -> PreActivationResNet:
    """Pre-activation ResNet of any depth 6n+2 for small images.

    Build a pre-activation network of (depth - 2) / 6 blocks a stage.

    Source: He et al. 2016, Identity Mappings.

    Args:
        input_shape: (channels, height, width); sides of at least 4 pixels.
        classes: number of classes K.
        depth: 6n+2 [selective].
        width: factor on the channels 16, 32, 64 [He et al. 2016, section 4.2].
        bottleneck: n bottlenecks a stage instead of n basic blocks [He et al. 2016, Identity Mappings].
        shortcut: input that a shape-changing shortcut projects: the `activated` one of the block, or the `raw` one
            [He et al. 2016, section 4.1; raw: selective's code].

    Raises:
        ValueError: the shape is not an image of at least 4x4.
    """
    in_channels, _, _ = require_image(input_shape, minimum_side=4, network="preresnet")
    stages = three_stages(width, (depth - 2) // 6)
    return PreActivationResNet(in_channels, classes, stages[0][0], stages, bottleneck, shortcut=shortcut)


ARCHITECTURES.add(
    "preresnet56",
    "PreResNet-56 (6n+2) of basic blocks, stem for small images",
    "He et al. 2016, Identity Mappings",
    apart=["bottleneck", "shortcut"],
)(partial(preresnet, depth=56))
ARCHITECTURES.add(
    "preresnet56_bottleneck",
    "nine bottlenecks a stage; with `shortcut: raw` what the selective paper's code calls PreResNet-56",
    "selective",
)(partial(preresnet, depth=56, bottleneck=True))


STEM_CHANNELS = 16  # for every width (Zagoruyko & Komodakis 2016, Table 1)


@ARCHITECTURES.add("wide_resnet", check=partial(depth_fault, default=28, beyond=4, valid="10, 16, 22, 28, 40"))
def wide_resnet(
    input_shape: tuple[int, ...],
    classes: int,
    depth: Annotated[int, "[10, inf)"] = 28,
    width: Annotated[float, "(0, inf)"] = 10,
    dropout: Annotated[float, "[0, 1)"] = 0.0,
) -> PreActivationResNet:
    """Wide ResNet of any depth 6n+4.

    Build WRN-`depth`-`width`.

    Source: Zagoruyko & Komodakis 2016.

    Args:
        input_shape: (channels, height, width); sides of at least 4 pixels.
        classes: number of classes K.
        depth: 6n+4 [Zagoruyko & Komodakis 2016].
        width: the widening factor k [Zagoruyko & Komodakis 2016].
        dropout: rate between the two convolutions of a block [Zagoruyko & Komodakis 2016, Table 4].

    Raises:
        ValueError: the shape is not an image of at least 4x4.
    """
    in_channels, _, _ = require_image(input_shape, minimum_side=4, network="wide_resnet")
    stages = three_stages(width, (depth - 4) // 6)
    return PreActivationResNet(in_channels, classes, STEM_CHANNELS, stages, dropout=dropout)


@ARCHITECTURES.add("wrn_26_10")
def wide_resnet_26(input_shape: tuple[int, ...], classes: int, width: Annotated[float, "(0, inf)"] = 10) -> ResNet:
    """Mukhoti's WRN-26-10, post-activation.

    Build mukhoti's WRN-26-`width`: (26 - 2) / 6 = 4 post-activation basic blocks per stage, with projections.

    Source: mukhoti.

    Args:
        width: the widening factor k [Zagoruyko & Komodakis 2016].

    Raises:
        ValueError: the shape is not an image of at least 4x4.
    """
    in_channels, _, _ = require_image(input_shape, minimum_side=4, network="wrn_26_10")
    return ResNet(in_channels, classes, STEM_CHANNELS, BasicBlock, three_stages(width, 4))


ARCHITECTURES.add("wrn_28_10", "WRN-28-10, pre-activation", "selective; Zagoruyko & Komodakis 2016")(
    partial(wide_resnet, depth=28)
)

"""Wide residual networks for small images: WRN-28-10 and mukhoti's WRN-26-10.

Zagoruyko and Komodakis, "Wide Residual Networks", 2016: pre-activation blocks with k times 16, 32, 64 channels
behind a stem of 16, depth 6n+4. mukhoti's released WRN-26-10 has post-activation blocks and counts its depth 6n+2:
four blocks a stage, like WRN-28-10.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from trainables.models.base import ARCHITECTURES, require_image
from trainables.models.preresnet import PreActivationResNet
from trainables.models.resnet import ThreeStageResNet, depth_fault, three_widths

STEM_CHANNELS = 16


#: Stand-in for these networks in a rehearsal.
SMALL = {"name": "wide_resnet", "depth": 10, "width": 0.25}


@ARCHITECTURES.add(
    "wide_resnet", check=partial(depth_fault, default=28, beyond=4, valid="10, 16, 22, 28, 40"), stand_in=SMALL
)
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
    return PreActivationResNet(
        in_channels, classes, (depth - 4) // 6, three_widths(width), STEM_CHANNELS, dropout=dropout
    )


@ARCHITECTURES.add("wrn_26_10", stand_in=SMALL)
def wide_resnet_26(
    input_shape: tuple[int, ...], classes: int, width: Annotated[float, "(0, inf)"] = 10
) -> ThreeStageResNet:
    """Mukhoti's WRN-26-10, post-activation.

    Build mukhoti's WRN-26-`width`: (26 - 2) / 6 = 4 post-activation basic blocks a stage, projections.

    Source: mukhoti.

    Args:
        width: the widening factor k [Zagoruyko & Komodakis 2016].

    Raises:
        ValueError: the shape is not an image of at least 4x4.
    """
    in_channels, _, _ = require_image(input_shape, minimum_side=4, network="wrn_26_10")
    return ThreeStageResNet(in_channels, classes, 4, STEM_CHANNELS, three_widths(width), identity_shortcuts=False)


ARCHITECTURES.add("wrn_28_10", "WRN-28-10, pre-activation", "selective; Zagoruyko & Komodakis 2016", stand_in=SMALL)(
    partial(wide_resnet, depth=28)
)

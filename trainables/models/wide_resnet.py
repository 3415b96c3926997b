"""Wide residual networks for small images: WRN-28-10 and mukhoti's WRN-26-10.

Zagoruyko and Komodakis, "Wide Residual Networks", 2016: pre-activation blocks with k times 16, 32, 64 channels
behind a stem of 16, depth 6n+4. mukhoti's released WRN-26-10 has post-activation blocks and counts its depth 6n+2:
four blocks a stage, like WRN-28-10.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trainables.models.base import require_image
from trainables.models.preresnet import PreActivationResNet
from trainables.models.resnet_cifar import ThreeStageResNet
from trainables.registry import Component, Hyperparameter, number_in

STEM_CHANNELS = 16


def wide_resnet(
    input_shape: tuple[int, ...], classes: int, depth: int = 28, width: float = 10, dropout: float = 0.0
) -> PreActivationResNet:
    """Build WRN-`depth`-`width`.

    Args:
        input_shape: (channels, height, width); sides of at least 4 pixels.
        classes: number of classes K.
        depth: 6n+4.
        width: the widening factor k.
        dropout: rate between the two convolutions of a block.

    Raises:
        ValueError: the depth is not 6n+4, or the shape is not an image of at least 4x4.
    """
    fault = wide_depth_fault({"depth": depth})
    if fault:
        raise ValueError(fault)
    in_channels, _, _ = require_image(input_shape, minimum_side=4, network="wide_resnet")
    return PreActivationResNet(
        in_channels, classes, (depth - 4) // 6, _stage_channels(width), STEM_CHANNELS, dropout=dropout
    )


def wide_resnet_26(input_shape: tuple[int, ...], classes: int, width: float = 10) -> ThreeStageResNet:
    """Build mukhoti's WRN-26-`width`: (26 - 2) / 6 = 4 post-activation basic blocks a stage, projections.

    Raises:
        ValueError: the shape is not an image of at least 4x4.
    """
    in_channels, _, _ = require_image(input_shape, minimum_side=4, network="wrn_26_10")
    return ThreeStageResNet(in_channels, classes, 4, STEM_CHANNELS, _stage_channels(width), identity_shortcuts=False)


def wide_depth_fault(values: Mapping[str, object]) -> str | None:
    """Return the rule a depth breaks, or `None` for 10, 16, 22, 28, ..."""
    depth = number_in(values, "depth", 28)
    if depth < 10 or (depth - 4) % 6:
        return f"depth = {depth} must be 6n+4 with n of at least 1: 10, 16, 22, 28, 40, ..."
    return None


def _stage_channels(width: float) -> list[int]:
    return [max(1, round(base * width)) for base in (16, 32, 64)]


WIDTH = Hyperparameter("width", "number", range="(0, inf)", source="Zagoruyko & Komodakis 2016")
DROPOUT = Hyperparameter("dropout", "number", range="[0, 1)", source="Zagoruyko & Komodakis 2016, Table 4")

SMALL = {"name": "wide_resnet", "depth": 10, "width": 0.25}
"""Stand-in for these networks in a rehearsal."""

COMPONENTS = (
    Component(
        "wrn_28_10",
        partial(wide_resnet, depth=28),
        (WIDTH, DROPOUT),
        summary="WRN-28-10, pre-activation",
        source="selective; Zagoruyko & Komodakis 2016",
        stand_in=SMALL,
    ),
    Component(
        "wrn_26_10",
        wide_resnet_26,
        (WIDTH,),
        summary="mukhoti's WRN-26-10, post-activation",
        source="mukhoti",
        stand_in=SMALL,
    ),
    Component(
        "wide_resnet",
        wide_resnet,
        (Hyperparameter("depth", "integer", minimum=10, source="Zagoruyko & Komodakis 2016"), WIDTH, DROPOUT),
        summary="wide ResNet of any depth 6n+4",
        source="Zagoruyko & Komodakis 2016",
        check=wide_depth_fault,
        stand_in=SMALL,
    ),
)

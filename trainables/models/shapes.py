"""Rules on the shape of a network's input."""

from __future__ import annotations


def require_image(input_shape: tuple[int, ...], minimum_side: int, network: str) -> tuple[int, int, int]:
    """Return (channels, height, width) when `input_shape` is an image that `network` can take.

    Raises:
        ValueError: not three-dimensional, or a side shorter than `minimum_side` pixels.
    """
    if len(input_shape) != 3:
        raise ValueError(
            f"{network} takes images (channels, height, width), but the data set's samples have shape "
            f"{tuple(input_shape)}; choose an architecture for that data, e.g. mlp"
        )
    channels, height, width = input_shape
    if min(height, width) < minimum_side:
        raise ValueError(
            f"{network} needs images of at least {minimum_side}x{minimum_side} pixels, but the data set's are "
            f"{height}x{width}; choose a data set of larger images (digits_32 has 32x32) or a smaller network"
        )
    return channels, height, width

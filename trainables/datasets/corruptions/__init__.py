"""The 15 common corruptions of Hendrycks & Dietterich 2019 (arXiv:1903.12261), computed from clean images.

Each corruption has five severities with the constants of the published benchmarks: CIFAR-10-C's for images with sides
of up to 64 pixels, and ImageNet-C's for larger images. The code follows the definitions that the authors released,
which `imagecorruptions` 1.1 packages, and processes many images at a time. There are two exceptions. Motion blur, also
within snow, follows imagecorruptions for both sizes (CIFAR-10-C's files come from ImageMagick). Impulse noise draws as
current scikit-image does. The benchmarks' released files had other random draws, so no computation reproduces them
exactly.

This file has their signature, their constants by severity, and conversions of pixels; the files of this folder hold a
few corruptions each, and `trainables.datasets.splits.corrupted` applies them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

#: [N, H, W, C], values 0 to 255.
Images = NDArray[np.uint8]

#: [N, H, W, C], values 0 to 255 as the result of a corruption, 0 to 1 inside it.
Floats = NDArray[np.float64]

#: (images, severity 1 to 5, whether they are small, draws) → corrupted images, values 0 to 255.
Corruption = Callable[[Images, int, bool, np.random.RandomState], Floats]


@functools.cache
def _severities() -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return the constants of all corruptions for `small` and `large` images, one or several per severity."""
    constants: Mapping[str, Mapping[str, Sequence[Any]]] = yaml.safe_load(
        Path(__file__).with_name("severities.yaml").read_text("utf-8")
    )
    return constants


def constant(kind: str, severity: int, small: bool) -> Any:
    """Return the benchmark's constant, or list of constants, of a corruption at severity 1 to 5."""
    return _severities()[kind]["small" if small else "large"][severity - 1]


def shares(images: Images) -> Floats:
    """Return pixels divided by the largest value, 255."""
    return images / 255.0


def levels(pixels: Floats) -> Floats:
    """Clip pixels to [0, 1], and return them as values from 0 to 255."""
    return np.asarray(np.clip(pixels, 0, 1) * 255)


def grey(pixels: Floats) -> Floats:
    """Return the luma [N, H, W, 1] of pixels; a single channel is returned unchanged."""
    # the weights of ITU-R BT.601, as OpenCV's in the reference
    if pixels.shape[-1] == 1:
        return pixels
    return np.asarray(pixels @ np.array([0.299, 0.587, 0.114]))[..., None]

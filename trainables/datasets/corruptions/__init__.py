"""The 15 common corruptions of Hendrycks & Dietterich 2019 (arXiv:1903.12261), computed from clean images.

Each corruption has five severities with the constants of the published benchmarks: CIFAR-10-C's for images with sides
of up to 64 pixels, and ImageNet-C's for larger images. The code follows the definitions that the authors released,
which `imagecorruptions` 1.1 packages, and processes many images at a time. There are two exceptions. Motion blur, also
within snow, follows imagecorruptions for both sizes (CIFAR-10-C's files come from ImageMagick). Impulse noise draws as
current scikit-image does. The benchmarks' released files had other random draws, so no computation reproduces them
exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from trainables.datasets.corruptions import blur, digital, weather
from trainables.datasets.corruptions.base import Corruption, Images

SEVERITIES = (1, 2, 3, 4, 5)

#: Images with sides of at most this use the constants of CIFAR-10-C; larger images use those of ImageNet-C.
LARGEST_SMALL_SIDE = 64

#: Smaller images would be all blur and border. Fashion-MNIST has the smallest images that can be corrupted.
LEAST_SIDE = 28

#: Pixel values corrupted at a time: 32 MiB in float64.
CHUNK_VALUES = 2**22

#: All kinds by name, in the order of the paper.
CORRUPTIONS: dict[str, Corruption] = {
    corruption.__name__: corruption
    for corruption in (
        digital.gaussian_noise, digital.shot_noise, digital.impulse_noise,
        blur.defocus_blur, blur.glass_blur, blur.motion_blur, blur.zoom_blur,
        weather.snow, weather.frost, weather.fog, weather.brightness,
        digital.contrast, digital.elastic_transform, digital.pixelate, digital.jpeg_compression,
    )
}  # fmt: skip

KINDS = tuple(CORRUPTIONS)


def corrupted(
    images: Images,
    kind: str,
    severity: int,
    draws: np.random.RandomState | None = None,
    report: Callable[[], None] = lambda: None,
) -> Images:
    """Return images corrupted by `kind` at `severity`, uint8 [N, H, W, C].

    Args:
        images: uint8 [N, H, W, C], with H = W of at least `LEAST_SIDE` and C of 1 or 3.
        kind: name in `KINDS`.
        severity: 1 to 5.
        draws: random generator. By default, kind and severity are its seed, so that all networks of all sweeps see the
            same images.
        report: callback after each part, to show progress.

    Raises:
        DataSetUnavailableError: the photographs of `frost` are missing.

    Example:
        >>> images = np.full((1, 32, 32, 3), 100, np.uint8)
        >>> corrupted(images, "brightness", severity=1)[0, 0, 0].tolist()
        [112, 112, 112]
    """
    # `crc32` instead of `hash`, which Python salts in every process
    draws = draws or np.random.RandomState(zlib.crc32(f"{kind} {severity}".encode()))
    small = images.shape[1] <= LARGEST_SMALL_SIDE
    step = max(1, CHUNK_VALUES // int(np.prod(images.shape[1:])))
    results = np.empty_like(images)
    for start in range(0, len(images), step):
        part = images[start : start + step]
        # Truncated, not rounded, as in the reference.
        results[start : start + step] = CORRUPTIONS[kind](part, severity, small, draws).astype(np.uint8)
        report()
    return results


def image_fault(shape: tuple[int, ...], dtype: object) -> str | None:
    """Return the reason why images [N, C, H, W] of `shape` and `dtype` cannot be corrupted, or `None`."""
    if np.dtype(str(dtype).removeprefix("torch.")) != np.uint8 or len(shape) != 4:
        return "inputs are not stored as images of uint8 pixels"
    _, channels, height, width = shape
    if channels not in (1, 3):
        return f"images have {channels} channels, not 1 or 3"
    if height != width or height < LEAST_SIDE:
        return f"images have {height}×{width} pixels; squares of at least {LEAST_SIDE}×{LEAST_SIDE} can be corrupted"
    return None

"""Noise (Gaussian, shot, impulse) and digital corruptions (contrast, elastic deformation, coarse pixels, JPEG)."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from trainables.datasets.corruptions import Floats, Images, constant, levels, shares
from trainables.datasets.corruptions.blur import smoothed


def gaussian_noise(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Add normal noise to every value."""
    return levels(shares(images) + draws.normal(size=images.shape, scale=constant("gaussian_noise", severity, small)))


def shot_noise(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Count photons: draw a Poisson number for each value, with the value as its mean."""
    photons = float(constant("shot_noise", severity, small))
    return levels(draws.poisson(shares(images) * photons) / photons)


def impulse_noise(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Make some values black or white."""
    # scikit-image's order of draws: for each image, first which values change, then their new values
    drawn = draws.random((len(images), 2, *images.shape[1:]))
    flipped, salted = drawn[:, 0] <= constant("impulse_noise", severity, small), drawn[:, 1] <= 0.5
    return levels(np.where(flipped, salted.astype(np.float64), shares(images)))


def contrast(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Move values towards each channel's mean."""
    pixels = shares(images)
    means = pixels.mean(axis=(1, 2), keepdims=True)
    return levels((pixels - means) * constant("contrast", severity, small) + means)


def sampled(pixels: Floats, rows: Floats, columns: Floats, align: bool) -> Floats:
    """Return [N, H, W, C] interpolated linearly at fractional positions [N, H, W], reflected beyond the edges.

    Args:
        pixels: images.
        rows: positions in pixels from the top.
        columns: positions in pixels from the left.
        align: whether to reflect about the centres of the outermost pixels instead of their outer edges.
    """
    height, width = pixels.shape[1:3]
    if align:
        x, y = 2 * columns / (width - 1) - 1, 2 * rows / (height - 1) - 1
    else:
        x, y = (2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1
    sample = functional.grid_sample(
        torch.from_numpy(pixels).permute(0, 3, 1, 2),
        torch.from_numpy(np.stack([x, y], axis=-1)),
        mode="bilinear",
        padding_mode="reflection",
        align_corners=align,
    )
    return np.asarray(sample.permute(0, 2, 3, 1).numpy())


def elastic_transform(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Displace pixels by smooth random fields; small images are distorted by a random affine map first."""
    strength, deviation, reach = constant("elastic_transform", severity, small)
    n, side = len(images), images.shape[1]
    affine = 6 if small else 0
    drawn = 2 * draws.random((n, affine + 2 * side * side)) - 1
    pixels = shares(images)
    if small:
        pixels = _affinely(pixels, drawn[:, :affine].reshape(n, 3, 2) * (reach * side))
    fields = drawn[:, affine:].reshape(n, 2, side, side)
    right, down = (
        smoothed(fields[:, axis], deviation * side, mode="reflect", truncate=3) * (strength * side) for axis in (0, 1)
    )
    line = np.arange(side)
    return levels(sampled(pixels, line[None, :, None] + down, line[None, None, :] + right, align=False))


def _affinely(pixels: Floats, moves: Floats) -> Floats:
    """Return images under the affine maps that move three points around the middle by `moves` [N, 3, 2] (x, y)."""
    side = pixels.shape[1]
    middle, third = side // 2, side // 3
    before = np.array([[1, 1], [1, -1], [-1, -1]]) * third + middle
    with_one = np.concatenate([before, np.ones((3, 1))], axis=1)
    forward = np.linalg.solve(with_one[None], before[None] + moves).transpose(0, 2, 1)  # [N, 2, 3]
    back = np.linalg.inv(forward[:, :, :2])
    line = np.arange(side, dtype=np.float64)
    grid = np.stack(np.meshgrid(line, line), axis=-1)  # [H, W, 2] (x, y)
    places = np.einsum("nij,nhwj->nhwi", back, grid[None] - forward[:, None, None, :, 2])
    return sampled(pixels, places[..., 1], places[..., 0], align=True)


def pixelate(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Shrink and enlarge again."""
    from PIL import Image

    side = images.shape[1]
    less = int(side * constant("pixelate", severity, small))
    back = Image.Resampling.BOX if small else Image.Resampling.NEAREST
    return _each(images, lambda picture: picture.resize((less, less), Image.Resampling.BOX).resize((side, side), back))


def jpeg_compression(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Write and read as JPEG."""
    from PIL import Image

    quality = constant("jpeg_compression", severity, small)

    def compressed(picture: Image.Image) -> Image.Image:
        file = BytesIO()
        picture.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _each(images, compressed)


def _each(images: Images, change: Callable[[Any], Any]) -> Floats:
    """Return all images after applying `change` to them as Pillow images."""
    from PIL import Image

    shape = images.shape[1:]
    pictures = images[..., 0] if shape[-1] == 1 else images
    return np.stack([np.asarray(change(Image.fromarray(row)), dtype=np.float64).reshape(shape) for row in pictures])

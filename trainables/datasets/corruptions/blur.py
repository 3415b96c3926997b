"""Blur: out of focus, through frosted glass, by motion and by zooming."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from trainables.datasets.corruptions import Floats, Images, constant, levels, shares

if TYPE_CHECKING:
    from scipy import sparse


def disk(radius: float, deviation: float) -> NDArray[np.float64]:
    """Return the kernel [K, K] of a disk with sum 1 and an edge smoothed by a Gaussian, without borders of zeros."""
    from scipy import ndimage

    reach, window = (8, 3) if radius <= 8 else (int(radius), 5)
    line = np.arange(-reach, reach + 1)
    kernel = (line[:, None] ** 2 + line[None, :] ** 2 <= radius**2).astype(np.float64)
    kernel /= kernel.sum()
    steps = np.arange(window) - window // 2
    smoother = np.exp(-(steps**2) / (2 * deviation**2))
    smoother /= smoother.sum()
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, smoother, axis=axis, mode="mirror")
    used = np.flatnonzero(kernel.max(axis=0) > 1e-12)
    return np.asarray(kernel[used[0] : used[-1] + 1, used[0] : used[-1] + 1])


def defocus_blur(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Average over a disk."""
    kernel = torch.from_numpy(disk(*constant("defocus_blur", severity, small)))
    reach = len(kernel) // 2
    pixels = torch.from_numpy(shares(images)).permute(0, 3, 1, 2)
    n, channels, height, width = pixels.shape
    planes = functional.pad(pixels.reshape(n * channels, 1, height, width), (reach,) * 4, mode="reflect")
    blurred = functional.conv2d(planes, kernel[None, None]).reshape(n, channels, height, width)
    return levels(blurred.permute(0, 2, 3, 1).numpy())


def smoothed(pixels: Floats, deviation: float, mode: str = "nearest", truncate: float = 4.0) -> Floats:
    """Return [N, H, W, …] smoothed by a Gaussian over H and W."""
    from scipy import ndimage

    deviations = (0, deviation, deviation) + (0,) * (pixels.ndim - 3)
    return np.asarray(ndimage.gaussian_filter(pixels, deviations, mode=mode, truncate=truncate))


def glass_blur(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Smooth, replace pixels by neighbours, and smooth again."""
    # The reference intends to swap pixels, but assigns through views of one array, which copies one of them. The
    # benchmarks were made this way.
    deviation, reach, passes = constant("glass_blur", severity, small)
    pixels = (smoothed(shares(images), deviation) * 255).astype(np.uint8)
    n, height, width = images.shape[:3]
    places = [(h, w) for h in range(height - reach, reach, -1) for w in range(width - reach, reach, -1)]
    moves = np.stack([draws.randint(-reach, reach, size=(passes * len(places), 2)) for _ in range(n)])
    every = np.arange(n)
    # one position after another, because a move reads pixels that earlier moves changed; all images at once
    for at, (h, w) in enumerate(places * passes):
        pixels[:, h, w] = pixels[every, h + moves[:, at, 1], w + moves[:, at, 0]]
    return levels(smoothed(shares(pixels), deviation))


def motion_blurred(pixels: Floats, radius: int, deviation: float, angles: NDArray[np.float64]) -> Floats:
    """Return [N, H, W, C] averaged along lines at angles [N] in degrees, weighted by half a Gaussian; edges repeat.

    Steps that would leave an image are omitted, and so are their weights, as in the reference.
    """
    length = 2 * radius + 1
    weights = np.exp(-(np.arange(length) ** 2) / (2 * deviation**2))
    weights /= weights.sum()
    n, height, width = pixels.shape[:3]
    sines, cosines = np.sin(np.deg2rad(angles)), np.cos(np.deg2rad(angles))
    total, inside, every = np.zeros(pixels.shape), np.ones(n, dtype=bool), np.arange(n)[:, None, None]
    for step, weight in enumerate(weights):
        down = -np.ceil(step * sines - 0.5).astype(np.int64)
        right = -np.ceil(step * cosines - 0.5).astype(np.int64)
        inside &= (abs(down) < height) & (abs(right) < width)
        rows = np.clip(np.arange(height)[None, :] - down[:, None], 0, height - 1)
        columns = np.clip(np.arange(width)[None, :] - right[:, None], 0, width - 1)
        shifted = pixels[every, rows[:, :, None], columns[:, None, :]]
        total += (weight * inside)[:, None, None, None] * shifted
    return total


def motion_blur(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Average along a line within 45 degrees of the horizontal."""
    radius, deviation = constant("motion_blur", severity, small)
    angles = draws.uniform(-45, 45, size=len(images))
    return np.clip(motion_blurred(images.astype(np.float64), radius, deviation, angles), 0, 255)


def enlargement(side: int, factor: float, centred: bool) -> NDArray[np.float64]:
    """Return the matrix [S, S] that enlarges the middle of a line of S values linearly by `factor` and crops it to S.

    Args:
        side: number of values S.
        factor: factor of at least 1.
        centred: whether to crop around the middle. If false, the crop is at the beginning, as in ImageNet-C.
    """
    kept = math.ceil(side / factor)
    first, size = (side - kept) // 2, round(kept * factor)
    cut = (size - side) // 2 if centred else 0
    places = np.arange(cut, cut + side) * ((kept - 1) / (size - 1))
    below = np.clip(places.astype(np.int64), 0, kept - 2)
    matrix, rows = np.zeros((side, side)), np.arange(side)
    matrix[rows, first + below] = 1 - (places - below)
    matrix[rows, first + below + 1] = places - below
    return matrix


def zoomed(pixels: Floats, factor: float, centred: bool) -> Floats:
    """Return the middle of [N, H, W], H = W, enlarged by `factor` and cropped to H × W; see `enlargement`."""
    matrix = enlargement(pixels.shape[1], factor, centred)
    return np.asarray(matrix @ pixels @ matrix.T)


@functools.lru_cache(maxsize=2)
def _mean_enlargement(side: int, severity: int, small: bool) -> sparse.csr_array:
    """Return the sparse matrix [S², S²] that averages an image and its enlargements."""
    from scipy import sparse

    factors = np.arange(1, *constant("zoom_blur", severity, small))
    total = sparse.eye_array(side * side, format="csr")
    for factor in factors:
        line = sparse.csr_array(enlargement(side, float(factor), centred=small))
        total = total + sparse.kron(line, line, format="csr")
    return sparse.csr_array(total / (len(factors) + 1))


def zoom_blur(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Average over enlargements."""
    n, side, _, channels = images.shape
    pixels = shares(images).transpose(1, 2, 0, 3).reshape(side * side, n * channels)
    mean = _mean_enlargement(side, severity, small) @ pixels
    return levels(mean.reshape(side, side, n, channels).transpose(2, 0, 1, 3))

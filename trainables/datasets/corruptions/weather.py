"""Weather: snow, fog, brightness, and frost, which overlays parts of five photographs of frozen windows.

The photographs belong to the benchmark and are not part of this project. They are read from `frost` in the folder of
data files, or from the package `imagecorruptions` if it is installed (it is not imported).
"""

from __future__ import annotations

import functools
import importlib.util
import math
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from trainables.datasets.cache import DataSetUnavailableError, data_folder
from trainables.datasets.corruptions import Floats, Images, constant, grey, levels, shares
from trainables.datasets.corruptions.blur import motion_blurred, zoomed


def snow(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Whiten, and add falling flakes and the same flakes turned by 180 degrees."""
    mean, deviation, size, least, radius, spread, share = constant("snow", severity, small)
    drawn = [
        (draws.normal(size=images.shape[1:3], loc=mean, scale=deviation), draws.uniform(-135, -45)) for _ in images
    ]
    flakes = zoomed(np.stack([flakes for flakes, _ in drawn]), size, centred=small)[..., None]
    flakes = np.clip(np.where(flakes < least, 0.0, flakes), 0, 1)
    angles = np.array([angle for _, angle in drawn])
    if small:
        flakes = np.floor(flakes * 255) / 255
    layer = np.round(motion_blurred(flakes, radius, spread, angles) * 255) / 255
    pixels = shares(images)
    pixels = share * pixels + (1 - share) * np.maximum(pixels, grey(pixels) * 1.5 + 0.5)
    return levels(pixels + layer + layer[:, ::-1, ::-1])


def plasma(n: int, side: int, decay: float, draws: np.random.RandomState) -> Floats:
    """Return n fractal height maps [n, S, S] from 0 to 1 by the diamond-square algorithm, S the next power of two.

    Source: Fournier, Fussell & Carpenter 1982, Computer rendering of stochastic models.
    """
    size = 1 << (side - 1).bit_length()
    drawn = iter(np.split(draws.random((n, size * size - 1)), _counts(size), axis=1))
    heights, step, wobble = np.zeros((n, size, size)), size, 100.0

    def mean_of(four: Floats) -> Floats:
        noise = next(drawn).reshape(four.shape)
        return np.asarray(four / 4 + wobble * (2 * wobble * noise - wobble))

    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        across = corners + np.roll(corners, -1, axis=1)
        heights[:, half::step, half::step] = mean_of(across + np.roll(across, -1, axis=2))
        middles = heights[:, half::step, half::step]
        beside = middles + np.roll(middles, 1, axis=1) + corners + np.roll(corners, -1, axis=2)
        heights[:, ::step, half::step] = mean_of(beside)
        above = middles + np.roll(middles, 1, axis=2) + corners + np.roll(corners, -1, axis=1)
        heights[:, half::step, ::step] = mean_of(above)
        step, wobble = half, wobble / decay
    heights -= heights.min(axis=(1, 2), keepdims=True)
    return np.asarray(heights / heights.max(axis=(1, 2), keepdims=True))


def _counts(size: int) -> NDArray[np.int64]:
    """Return the boundaries between the draws of the levels: three parts of 1, 4, 16 … points each."""
    levels_of = [4**level for level in range(size.bit_length() - 1) for _ in range(3)]
    return np.cumsum(levels_of)[:-1]


def fog(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Add a fractal haze, and scale back to the brightest value."""
    strength, decay = constant("fog", severity, small)
    height, width = images.shape[1:3]
    pixels = shares(images)
    brightest = pixels.max(axis=(1, 2, 3), keepdims=True)
    haze = plasma(len(images), max(height, width), decay, draws)[:, :height, :width, None]
    return levels((pixels + strength * haze) * brightest / (brightest + strength))


def brightness(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Raise the value of HSV, the largest channel, at constant hue and saturation: channels keep their ratios."""
    pixels = shares(images)
    value = pixels.max(axis=-1, keepdims=True)
    raised = np.clip(value + constant("brightness", severity, small), 0, 1)
    return levels(np.where(value > 0, pixels * (raised / np.where(value > 0, value, 1)), raised))


FROST_KIND = "frost"

#: The benchmark has a sixth photograph, but its code never draws it.
PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")

REMEDY = "copy frost1.png … frost5.jpg of the package imagecorruptions there, install it, or leave out frost"


def photographs_folder() -> Path:
    """Return the folder of the photographs.

    Raises:
        DataSetUnavailableError: a photograph is missing.
    """
    package = importlib.util.find_spec("imagecorruptions")
    candidates = [data_folder() / FROST_KIND]
    if package is not None and package.origin is not None:
        candidates.append(Path(package.origin).parent / FROST_KIND)
    for folder in candidates:
        if all((folder / name).is_file() for name in PHOTOGRAPHS):
            return folder
    raise DataSetUnavailableError(candidates[0], "the benchmark's photographs of frost are missing", REMEDY)


@functools.lru_cache(maxsize=2)
def _photographs(folder: Path, side: int, small: bool) -> tuple[Images, ...]:
    """Return the photographs [H, W, 3] at the size from which parts for images of `side` are cut."""
    from PIL import Image

    pictures = [np.asarray(Image.open(folder / name).convert("RGB")) for name in PHOTOGRAPHS]
    # Shrinking to a fifth takes every fifth pixel, because the centre of five pixels is a pixel.
    return tuple(picture[2::5, 2::5] for picture in pictures) if small else tuple(_fitted(p, side) for p in pictures)


def _fitted(picture: Images, side: int) -> Images:
    """Return a photograph enlarged cubically to 1.1 times the size that covers `side`."""
    height, width = picture.shape[:2]
    factor = max(1.0, side / height, side / width) * 1.1
    pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].to(torch.float32)
    size = (math.ceil(height * factor), math.ceil(width * factor))
    enlarged = functional.interpolate(pixels, size, mode="bicubic").round().clamp(0, 255)
    return np.asarray(enlarged[0].permute(1, 2, 0).to(torch.uint8).numpy())


def frost(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Overlay a random part of a random photograph on each image.

    Raises:
        DataSetUnavailableError: a photograph is missing.
    """
    own, other = constant("frost", severity, small)
    side, channels = images.shape[1], images.shape[3]
    photographs = _photographs(photographs_folder(), side, small)
    layers = np.empty((*images.shape[:3], 3))
    for layer in layers:
        picture = photographs[draws.randint(5)]
        row, column = draws.randint(0, picture.shape[0] - side), draws.randint(0, picture.shape[1] - side)
        layer[:] = picture[row : row + side, column : column + side]
    if channels == 1:
        layers = (layers @ np.array([0.2989, 0.5870, 0.1140]))[..., None]
    return np.asarray(np.clip(own * images.astype(np.float64) + other * layers, 0, 255))

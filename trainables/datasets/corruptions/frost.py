"""Frost: parts of five photographs of frozen windows laid over images.

The photographs belong to the benchmark and are not part of this project. They are read from `frost` in the folder of
data files, or from the package `imagecorruptions` where that is installed (it is not imported).
"""

from __future__ import annotations

import functools
import importlib.util
import math
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from trainables.datasets.cache import data_folder
from trainables.datasets.corruptions.base import Constants, Floats, Images, constant
from trainables.datasets.errors import DataSetUnavailableError

FROST_KIND = "frost"

FROST: Constants[tuple[float, float]] = (
    ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
)
"""Weights of image and photograph."""

PHOTOGRAPHS = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
"""The sixth of the benchmark is never drawn by its own code."""

REMEDY = "copy frost1.png … frost5.jpg of the package imagecorruptions there, install it, or leave out frost"


def photographs_folder() -> Path:
    """Return where the photographs are. Raises DataSetUnavailableError where they are not all there."""
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
    """Return the photographs [H, W, 3] at the size at which parts are cut from them for images of a side."""
    from PIL import Image

    pictures = [np.asarray(Image.open(folder / name).convert("RGB")) for name in PHOTOGRAPHS]
    # A fifth in each direction is every fifth pixel, since the middle of five is a pixel.
    return tuple(picture[2::5, 2::5] for picture in pictures) if small else tuple(_fitted(p, side) for p in pictures)


def _fitted(picture: Images, side: int) -> Images:
    """Return a photograph enlarged by a tenth beyond what covers `side`, cubically."""
    height, width = picture.shape[:2]
    factor = max(1.0, side / height, side / width) * 1.1
    pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].to(torch.float32)
    size = (math.ceil(height * factor), math.ceil(width * factor))
    found = functional.interpolate(pixels, size, mode="bicubic").round().clamp(0, 255)
    return np.asarray(found[0].permute(1, 2, 0).to(torch.uint8).numpy())


def frost(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Lay a random part of a random photograph over each image. Raises DataSetUnavailableError without photographs."""
    own, other = constant(FROST, severity, small)
    side, channels = images.shape[1], images.shape[3]
    photographs = _photographs(photographs_folder(), side, small)
    layers = np.empty((*images.shape[:3], 3))
    for layer in layers:
        picture = photographs[draws.randint(5)]
        row, column = draws.randint(0, picture.shape[0] - side), draws.randint(0, picture.shape[1] - side)
        layer[:] = picture[row : row + side, column : column + side]
    if channels == 1:
        layers = (layers @ np.array([0.2989, 0.5870, 0.1140]))[..., None]
    return np.clip(own * images.astype(np.float64) + other * layers, 0, 255)

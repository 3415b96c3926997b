"""The UCI handwritten digits that ship inside scikit-learn: real data without a download.

1,797 grey images of 8x8 pixels with 17 levels, 10 classes (Alpaydin and Kaynak, "Optical Recognition of
Handwritten Digits", UCI Machine Learning Repository, 1998; its test part).

The packaged file is read directly. Importing scikit-learn for it would cost every worker more than a second.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from trainables.datasets.base import DATASETS, DataSet, divided, hash_of_splits, stratified_split
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.image_stream import CropAndFlip
from trainables.datasets.images import (
    LIKE_CIFAR,
    Augment,
    ImageArrays,
    LabelNoise,
    flip_labels,
    image_dataset,
    images_on_paper,
)

SPLIT_SEED = 0
HELD_OUT_FRACTIONS = (0.2, 0.2)  # validation and test; the rest, about 60 %, is for training
LEVELS = 16  # pixels are whole numbers from 0 to 16
CLASS_NAMES = tuple("0123456789")
REMEDY = "reinstall it with: pip install --force-reinstall scikit-learn"


def digits_file() -> Path:
    """Return the path of scikit-learn's packaged digits, found without importing it.

    Raises:
        DataSetUnavailableError: scikit-learn is not installed, or lacks the file.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataSetUnavailableError("scikit-learn", "the package that holds the digits is not installed", REMEDY)
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise DataSetUnavailableError(path, "scikit-learn's packaged digits are missing", REMEDY)
    return path


def read_digits(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the packaged file: images uint8 [N, 8, 8] with values 0 to 16, and classes int64 [N].

    Raises:
        DataSetUnavailableError: the file is truncated or holds something else.
    """
    try:
        with gzip.open(path, "rt", encoding="ascii") as lines:
            table = np.loadtxt(lines, delimiter=",", dtype=np.int64, ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataSetUnavailableError(path, f"cannot be read as the packaged digits ({error})", REMEDY) from error
    if table.shape[1] != 65 or not (table.min() >= 0 and table[:, :64].max() <= LEVELS and table[:, 64].max() <= 9):
        raise DataSetUnavailableError(
            path, "does not contain rows of 64 pixels from 0 to 16 and a class from 0 to 9", REMEDY
        )
    return table[:, :64].astype(np.uint8).reshape(-1, 8, 8), table[:, 64].astype(np.int64)


def digit_arrays() -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[NDArray[np.int64], ...]]:
    """Return images uint8 [N, 8, 8] with values 0 to 16, classes [N], and the indices of train, val and test; copies.

    Raises:
        DataSetUnavailableError: scikit-learn's packaged file is missing or broken.
    """
    images, targets, parts = _splits()
    return images.copy(), targets.copy(), tuple(part.copy() for part in parts)


@functools.lru_cache(maxsize=1)
def _splits() -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[NDArray[np.int64], ...]]:
    images, targets = read_digits(digits_file())
    return images, targets, tuple(stratified_split(targets, HELD_OUT_FRACTIONS, SPLIT_SEED))


SAMPLES = (1079, 359, 359)
"""For training, validation and test."""


@DATASETS.add("digits", size=images_on_paper((1, 8, 8), 10, *SAMPLES), stand_in={})
@functools.lru_cache(maxsize=2)
def load_digits(label_noise: LabelNoise = 0.0) -> DataSet:
    """UCI handwritten digits, 1,797 grey images of 8x8; ships with scikit-learn, no download.

    Load the digits: inputs float32 [N, 1, 8, 8], a fixed stratified 60/20/20 split.

    Pixels are scaled to [0, 1] and standardised with the training split's mean and standard deviation (one of each
    for all pixels), as images are for every network here. Loaded once a process; treat the tensors as read-only.

    Source: UCI Machine Learning Repository, Optical Recognition of Handwritten Digits.

    Args:
        label_noise: share of training labels that are flipped; validation and test labels stay right.

    Raises:
        DataSetUnavailableError: scikit-learn's packaged file is missing or broken.
    """
    images, targets, parts = digit_arrays()
    targets[parts[0]] = flip_labels(targets[parts[0]], label_noise, len(CLASS_NAMES))
    pixels = images.astype(np.float32)[:, None] / LEVELS
    reference = pixels[parts[0]]
    pixels = (pixels - reference.mean(dtype=np.float64)) / reference.std(dtype=np.float64)
    return divided("digits", pixels.astype(np.float32), targets, parts, 10, class_names=CLASS_NAMES)


@DATASETS.add("digits_32", size=images_on_paper((3, 32, 32), 10, *SAMPLES), stand_in=LIKE_CIFAR)
@functools.lru_cache(maxsize=2)
def load_digits_32(augment: Augment = True) -> DataSet:
    """The digits at 32x32 with three channels, for CIFAR networks without a download.

    Load the digits enlarged to 32x32 with three equal channels, for networks shaped for CIFAR.

    Bilinear enlargement, uint8 storage, the split of `digits`. Training images are shifted by up to 4 pixels (one
    pixel of the original), not mirrored.

    Source: UCI Machine Learning Repository, Optical Recognition of Handwritten Digits.

    Args:
        augment: shift training images.

    Raises:
        DataSetUnavailableError: scikit-learn's packaged file is missing or broken.
    """
    images, targets, parts = _splits()
    return enlarged_digits("digits_32", images, targets, parts, (3, 32, len(CLASS_NAMES)), augment)


def enlarged_digits(
    name: str,
    images: NDArray[np.uint8],
    targets: NDArray[np.int64],
    parts: Sequence[NDArray[np.int64]],
    shape: tuple[int, int, int],
    augment: bool,
) -> DataSet:
    """Return digits [N, 8, 8] as the image data set `name`; see `load_digits_32`.

    Args:
        name: of the data set.
        images: values 0 to 16.
        targets: classes [N].
        parts: indices of train, val and test.
        shape: equal channels, side and number of classes.
        augment: shift training images.
    """
    channels, size, classes = shape
    small = torch.from_numpy(images)[:, None].to(torch.float32) * (255 / LEVELS)
    large = functional.interpolate(small, (size, size), mode="bilinear", antialias=False)
    pixels = large.round().to(torch.uint8).expand(-1, channels, -1, -1).numpy()
    share = pixels[parts[0], 0].astype(np.float64) / 255
    dataset = image_dataset(
        name,
        ImageArrays(pixels, targets),
        ImageArrays(pixels[parts[2]], targets[parts[2]]),
        (parts[0], parts[1]),
        class_names=tuple(map(str, range(classes))),
        mean=(float(share.mean()),) * channels,
        std=(float(share.std()),) * channels,
        augmentation=CropAndFlip(flip=False) if augment else None,
    )
    return replace(dataset, split_hash=hash_of_splits(*parts))

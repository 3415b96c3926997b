"""From arrays of pixels to a data set: options, augmentation and normalisation that all image sets share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.datasets.base import DataSet, Indices, Split, hash_of_splits, shuffled_split, stratified_split, thinned
from trainables.datasets.image_stream import CropAndFlip, ImagePreprocessing
from trainables.registry import Component, DataSetSize, Hyperparameter, Options

FOLDER = Hyperparameter("folder", "text", None, source="SWEEPER_DATA, else ~/.cache/calibration-sweeper")
DOWNLOAD = Hyperparameter("download", "boolean", source="nothing is fetched unless asked")
AUGMENT = Hyperparameter("augment", "boolean", True, source="He et al. 2016, section 4.2: crop by 4 pixels, flip")
IMAGE_SIZE = Hyperparameter(
    "image_size", "integer", None, minimum=1, source="selective resizes Tiny-ImageNet to 224 for its transformers"
)


LIKE_CIFAR = {"channels": 3, "size": 32, "classes": 10}
"""Options of `digits_stand_in` that give it CIFAR's shape; no class beyond ten, no side beyond 32."""


def images_on_paper(
    shape: tuple[int, int, int], classes: int, train: int, val: int, test: int
) -> Callable[[Options], DataSetSize]:
    """Return the `Component.size` of images of `shape` (C, H, W); `image_size` and `class_fraction` change it."""

    def size(options: Options) -> DataSetSize:
        side = options.get("image_size")
        kept = round(train * options.get("class_fraction", 1.0))
        return DataSetSize((shape[0], side, side) if side else shape, classes, kept, val, test)

    return size


def published_images(
    name: str,
    load: Callable[..., DataSet],
    summary: str,
    source: str,
    more: Sequence[Hyperparameter] = (),
    *,
    size: Callable[[Options], DataSetSize],
    stand_in: Options = LIKE_CIFAR,
) -> Component:
    """Return the component of a set whose published archives `load` reads: the options of all of them, and `more`."""
    options = (FOLDER, DOWNLOAD, AUGMENT, IMAGE_SIZE, *more)
    return Component(name, load, options, summary, source, size=size, stand_in=stand_in)


@dataclass(frozen=True)
class ImageArrays:
    """Images and classes as read from disk.

    Attributes:
        images: uint8 [N, C, H, W].
        targets: int64 [N].
    """

    images: NDArray[np.uint8]
    targets: NDArray[np.int64]


def held_out(
    targets: NDArray[np.generic], split: str, fraction: float = 0.1, class_fraction: float = 1.0
) -> tuple[Indices, Indices]:
    """Return training and validation indices of a training set.

    Args:
        targets: classes, int [N].
        split: `shuffled`: the first tenth of one shuffle with seed 1, as mukhoti's released code draws 45k/5k;
            `stratified`: a tenth of each class with seed 42, as the selective paper's.
        fraction: share of the validation set.
        class_fraction: share of each class kept for training (posterior's CIFAR10-s: 0.1); validation stays whole.
    """
    if split == "shuffled":
        train, val = shuffled_split(len(targets), fraction, seed=1)
    else:
        train, val = stratified_split(targets, (fraction,), seed=42)
    return (train if class_fraction == 1 else thinned(train, targets, class_fraction, seed=42)), val


def image_dataset(
    name: str,
    train: ImageArrays,
    test: ImageArrays,
    parts: tuple[Indices, Indices],
    *,
    class_names: Sequence[str],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    augmentation: CropAndFlip | None,
    image_size: int | None = None,
) -> DataSet:
    """Cut `train` into training and validation `parts`; keep pixels as uint8 and prepare batches on the device.

    Normalising uint8 batches on the device keeps CIFAR at 184 MB instead of 737 MB and makes padding black.
    """
    preprocessing = ImagePreprocessing(mean, std, image_size)

    def split(arrays: ImageArrays, indices: Indices | None, changes: CropAndFlip | None = None) -> Split:
        images, targets = arrays.images, arrays.targets
        if indices is not None:
            images, targets = images[indices], targets[indices]
        stored, classes = (torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in (images, targets))
        return Split(stored, classes, preprocessing, changes)

    channels, height, width = train.images.shape[1:]
    side = (height, width) if image_size is None else (image_size, image_size)
    return DataSet(
        name,
        split(train, parts[0], augmentation),
        split(train, parts[1]),
        split(test, None),
        len(class_names),
        (channels, *side),
        hash_of_splits(*parts, np.arange(len(test.targets))),
        tuple(class_names),
    )

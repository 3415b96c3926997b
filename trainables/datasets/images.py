"""Data sets from arrays of pixels: the options, augmentation and normalisation that all image sets share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.datasets.base import DataSet, Indices, Split, hash_of_splits, shuffled_split, stratified_split, thinned
from trainables.datasets.image_stream import CropAndFlip, ImagePreprocessing
from trainables.registry import DataSetSize, Hyperparameter, Options

Augment = Annotated[bool, Hyperparameter(source="He et al. 2016, section 4.2: crop by 4 pixels, flip")]
ImageSize = Annotated[
    int | None, Hyperparameter(range="[1, inf)", source="selective resizes Tiny-ImageNet to 224 for its transformers")
]


def images_on_paper(
    shape: tuple[int, int, int], classes: int, train: int, val: int, test: int
) -> Callable[[Options], DataSetSize]:
    """Return the `Component.size` of images of `shape` (C, H, W); `image_size` and `class_fraction` change it."""

    def size(options: Options) -> DataSetSize:
        side = options.get("image_size")
        kept = round(train * options.get("class_fraction", 1.0))
        return DataSetSize((shape[0], side, side) if side else shape, classes, kept, val, test)

    return size


NOISE_SEED = 0

LabelNoise = Annotated[
    float, "[0, 1): share of training labels that are flipped", Hyperparameter(source="mukhoti App. B flips a tenth")
]


def flip_labels(targets: NDArray[np.int64], share: float, classes: int, seed: int = NOISE_SEED) -> NDArray[np.int64]:
    """Return labels with exactly `round(share * N)` of them changed to another class, drawn uniformly.

    This is symmetric noise (Zhang et al., "Understanding Deep Learning Requires Rethinking Generalization", 2017),
    except that a flipped label is always wrong, so `share` is exact.

    Args:
        targets: classes from 0, int [N].
        share: share of the labels to flip.
        classes: number of classes K, at least 2 if any label is flipped.
        seed: seed of the draw.

    Example:
        >>> int((flip_labels(np.zeros(10, np.int64), 0.3, classes=5) != 0).sum())
        3
    """
    random = np.random.RandomState(seed)
    chosen = random.permutation(len(targets))[: round(share * len(targets))]
    flipped = targets.copy()
    # an offset of 1 to K − 1, modulo K, never returns the label itself
    flipped[chosen] = (targets[chosen] + random.randint(1, max(2, classes), len(chosen))) % classes
    return flipped


@dataclass(frozen=True)
class ImageArrays:
    """Images and classes as read from disk.

    Attributes:
        images: pixels, uint8 [N, C, H, W].
        targets: classes, int64 [N].
    """

    images: NDArray[np.uint8]
    targets: NDArray[np.int64]


#: Share of the training images that are held out for validation.
HELD_OUT = 0.1


def held_out(targets: NDArray[np.generic], split: str, class_fraction: float = 1.0) -> tuple[Indices, Indices]:
    """Return training and validation indices of a training set.

    Args:
        targets: classes, int [N].
        split: `shuffled` takes the first tenth of one shuffle with seed 1, as mukhoti's released code draws 45k/5k;
            `stratified` takes a tenth of each class with seed 42, as in the selective paper.
        class_fraction: share of each class kept for training (posterior's CIFAR10-s: 0.1); validation stays whole.
    """
    if split == "shuffled":
        train, val = shuffled_split(len(targets), HELD_OUT, seed=1)
    else:
        train, val = stratified_split(targets, (HELD_OUT,), seed=42)
    return (train if class_fraction == 1 else thinned(train, targets, class_fraction, seed=42)), val


def image_dataset(
    name: str,
    train: ImageArrays,
    test: ImageArrays,
    parts: tuple[Indices, Indices],
    class_names: Sequence[str],
    preprocessing: ImagePreprocessing,
    augment: bool,
    flip: bool = True,
) -> DataSet:
    """Divide `train` into training and validation `parts`; keep pixels as uint8 and prepare batches on the device.

    With `augment`, training images are cropped, and mirrored if `flip` is true.
    """
    # Normalising uint8 batches on the device keeps CIFAR at 184 MB instead of 737 MB and makes padding black.

    def split(arrays: ImageArrays, rows: Indices | slice, changes: CropAndFlip | None = None) -> Split:
        chosen = arrays.images[rows], arrays.targets[rows]
        # "W": arrays mapped from disk are read-only, and torch warns about tensors that share such memory
        stored, classes = (torch.from_numpy(np.require(array, requirements=["C", "W"])) for array in chosen)
        return Split(stored, classes, preprocessing, changes)

    channels, height, width = train.images.shape[1:]
    side = (height, width) if preprocessing.size is None else (preprocessing.size,) * 2
    train_split, val = split(train, parts[0], CropAndFlip(flip=flip) if augment else None), split(train, parts[1])
    chosen = hash_of_splits(*parts, np.arange(len(test.targets)))
    shape, names = (channels, *side), tuple(class_names)
    return DataSet(name, train_split, val, split(test, slice(None)), len(names), shape, chosen, names)

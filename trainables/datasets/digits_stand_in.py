"""Handwritten digits in another data set's shape: what a rehearsal trains on, without a download.

Images are enlarged and repeated over channels. As text, every inked place of the image is a word that names the place
and its darkness, so a digit is a sentence of up to 64 words; as trees, the words of the image at 4x4 are joined two by
two. The task is the same real one in every form.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.base import DATASETS, DataSet, divided
from trainables.datasets.digits import LEVELS, SAMPLES, digit_arrays, enlarged_digits
from trainables.datasets.images import Augment, LabelNoise, flip_labels
from trainables.datasets.sentiment import Tree, encoded_tree
from trainables.registry import DataSetSize, Options

NAME = "digits_stand_in"
SHADES = 4  # 17 grey levels as four words a place; white is no word
FIRST_WORD = 2  # 0 is padding and 1 an unknown word, as in the text data sets
PLACES = 64
VOCABULARY = FIRST_WORD + PLACES * SHADES
TREE_SIDE = 4


def _on_paper(options: Options) -> DataSetSize:
    form, side = options["form"], options["size"]
    shape = {"images": (options["channels"], side, side), "tokens": (PLACES,), "trees": (2 * TREE_SIDE**2 - 1, 4)}[form]
    asked = (options[f"{split}_samples"] for split in ("train", "validation", "test"))
    train, val, test = (min(int(count), most) for count, most in zip(asked, SAMPLES, strict=True))
    return DataSetSize(shape, options["classes"], train, val, test, text=form != "images")


@DATASETS.add(NAME, size=_on_paper, stand_in={})
def load_digits_stand_in(
    form: Literal["images", "tokens", "trees"] = "images",
    channels: Annotated[int, "[1, 16]"] = 3,
    size: Annotated[int, "[8, 256]"] = 32,
    classes: Annotated[int, "[2, 10]"] = 10,
    train_samples: Annotated[int, "[1, 1797]"] = 256,
    validation_samples: Annotated[int, "[1, 1797]"] = 128,
    test_samples: Annotated[int, "[1, 1797]"] = 128,
    augment: Augment = True,
    label_noise: LabelNoise = 0.0,
) -> DataSet:
    """The digits in another data set's shape (images, token ids, parse trees), for rehearsals.

    Load a part of the digits in a form of your choice.

    Source: UCI Machine Learning Repository, Optical Recognition of Handwritten Digits.

    Args:
        form: `images`, uint8 [N, channels, size, size]; `tokens`, int32 [N, 64]; `trees`, int32 [N, 31, 4] each.
        channels: equal channels of an image [CIFAR].
        size: side of an image; bilinear enlargement [CIFAR].
        classes: the class is the digit modulo `classes` [there are ten digits].
        train_samples: the first samples of each split of `digits` are taken, as many as there are at most
            [a rehearsal of minutes on two cores].
        validation_samples: as many for validation [as above].
        test_samples: as many for testing [as above].
        augment: shift training images by up to 4 pixels.
        label_noise: share of training labels that are flipped.

    Raises:
        DataSetUnavailableError: scikit-learn's packaged file is missing or broken.
    """
    images, digits, whole = digit_arrays()
    sizes = (train_samples, validation_samples, test_samples)
    parts = tuple(part[:count] for part, count in zip(whole, sizes, strict=True))
    train, targets = parts[0], digits % classes
    targets[train] = flip_labels(targets[train], label_noise, classes)
    if form == "images":
        return enlarged_digits(NAME, images, targets, parts, (channels, size, classes), augment)
    encoded = _sentences(images) if form == "tokens" else _trees(images)
    names = tuple(map(str, range(classes)))
    return divided(NAME, encoded, targets, parts, classes, class_names=names, vocabulary=VOCABULARY)


def _words(shades: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the word of every place from its shade, 0 (no word) to SHADES: int [N, places]."""
    places = np.arange(shades.shape[1])
    return np.where(shades > 0, FIRST_WORD + places * SHADES + shades - 1, 0).astype(np.int32)


def _sentences(images: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return images [N, 8, 8] as token ids [N, 64], the words of the inked places at the end, padding before."""
    shades = np.ceil(images.reshape(len(images), PLACES) * (SHADES / LEVELS)).astype(np.int64)
    words = _words(shades)
    order = np.argsort(words > 0, axis=1, kind="stable")
    return np.take_along_axis(words, order, 1)


def _trees(images: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return images [N, 8, 8] as binary trees over the words of their 4x4 means, [N, nodes, 4]."""
    side = images.shape[1] // TREE_SIDE
    means = images.reshape(len(images), TREE_SIDE, side, TREE_SIDE, side).mean((2, 4)).reshape(len(images), -1)
    words = _words(1 + np.minimum(np.floor(means * (SHADES / LEVELS)), SHADES - 1).astype(np.int64))
    ids = {str(token): token for token in range(VOCABULARY)}
    return np.stack([encoded_tree(_halved([str(word) for word in row]), ids, 2 * len(row) - 1) for row in words])


def _halved(words: list[str]) -> Tree:
    """Return a balanced tree over the words; its labels are not used."""
    if len(words) == 1:
        return Tree(0, words[0])
    middle = len(words) // 2
    return Tree(0, children=(_halved(words[:middle]), _halved(words[middle:])))

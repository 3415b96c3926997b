"""The UCI handwritten digits in scikit-learn: real data without a download, also used for rehearsals.

1,797 grey images of 8x8 pixels with 17 levels, 10 classes (Alpaydin and Kaynak, "Optical Recognition of
Handwritten Digits", UCI Machine Learning Repository, 1998; its test part).

The packaged file is read directly: importing scikit-learn would take every worker more than a second.
"""

from __future__ import annotations

import functools
import importlib.util
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from trainables.datasets.base import DATASETS, DataSet, divided, hash_of_splits, stratified_split
from trainables.datasets.cache import DataSetUnavailableError, refused
from trainables.datasets.image_stream import ImagePreprocessing
from trainables.datasets.images import Augment, ImageArrays, LabelNoise, flip_labels, image_dataset, images_on_paper
from trainables.datasets.raw_inputs import Numbers
from trainables.datasets.sentiment import Tree, encoded_tree
from trainables.datasets.transforms import Standardised, Transform
from trainables.registry import DataSetSize, Options

SPLIT_SEED = 0
HELD_OUT_FRACTIONS = (0.2, 0.2)  # validation and test; the rest, about 60 %, is for training
LEVELS = 16  # pixels are whole numbers from 0 to 16
CLASS_NAMES = tuple("0123456789")
REMEDY = "reinstall it with: pip install --force-reinstall scikit-learn"


def digits_file() -> Path:
    """Return the path of scikit-learn's packaged digits without importing scikit-learn.

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
        DataSetUnavailableError: the file is truncated or has other contents.
    """
    with refused(path, "cannot be read as the packaged digits", REMEDY, OSError, EOFError, ValueError, zlib.error):
        table = np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2, encoding="ascii")
    if table.shape[1] != 65 or not (table.min() >= 0 and table[:, :64].max() <= LEVELS and table[:, 64].max() <= 9):
        raise DataSetUnavailableError(
            path, "does not contain rows of 64 pixels from 0 to 16 and a class from 0 to 9", REMEDY
        )
    return table[:, :64].astype(np.uint8).reshape(-1, 8, 8), table[:, 64].astype(np.int64)


def digit_arrays() -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[NDArray[np.int64], ...]]:
    """Return images uint8 [N, 8, 8] with values 0 to 16, classes [N], and the indices of train, val and test.

    Raises:
        DataSetUnavailableError: scikit-learn's packaged file is missing or broken.
    """
    images, targets = read_digits(digits_file())
    return images, targets, tuple(stratified_split(targets, HELD_OUT_FRACTIONS, SPLIT_SEED))


#: Number of samples for training, validation and test.
SAMPLES = (1079, 359, 359)


@DATASETS.add("digits", size=images_on_paper((1, 8, 8), 10, *SAMPLES))
@functools.lru_cache(maxsize=2)
def load_digits(label_noise: LabelNoise = 0.0) -> DataSet:
    """UCI handwritten digits, 1,797 grey images of 8x8; ships with scikit-learn, no download.

    Load the digits: inputs float32 [N, 1, 8, 8], a fixed stratified 60/20/20 split.

    Pixels are scaled to [0, 1] and standardised with the mean and standard deviation of all training pixels. The data
    are loaded once per process; treat the tensors as read-only.

    Source: UCI Machine Learning Repository, Optical Recognition of Handwritten Digits.

    Args:
        label_noise: share of training labels that are flipped; validation and test labels stay correct.

    Raises:
        DataSetUnavailableError: scikit-learn's packaged file is missing or broken.

    Example:
        >>> digits = load_digits()
        >>> len(digits.train), len(digits.val), len(digits.test)
        (1079, 359, 359)
    """
    images, targets, parts = digit_arrays()
    targets[parts[0]] = flip_labels(targets[parts[0]], label_noise, len(CLASS_NAMES))
    pixels, reference = torch.from_numpy(images)[:, None], images[parts[0]].astype(np.float32) / LEVELS
    # multiplying by 16 is exact: the bits are those of standardised pixels in [0, 1]
    module = Standardised(LEVELS * reference.mean(dtype=np.float64), LEVELS * reference.std(dtype=np.float64))
    reader = Numbers((1, *images.shape[1:]), "uint8", 0, LEVELS)
    facts: dict[str, Any] = {
        "class_names": CLASS_NAMES,
        "transform": Transform(module, pixels[torch.from_numpy(parts[2])], reader),
    }
    return divided("digits", module(pixels).numpy(), targets, parts, 10, **facts)


@DATASETS.add("digits_32", size=images_on_paper((3, 32, 32), 10, *SAMPLES))
@functools.lru_cache(maxsize=2)
def load_digits_32(augment: Augment = True) -> DataSet:
    """The digits at 32x32 with three channels, for CIFAR networks without a download.

    Load the digits enlarged to 32x32 with three equal channels, for networks shaped for CIFAR.

    Images are enlarged bilinearly, stored as uint8 and divided into splits as in `digits`. Training images are shifted
    by up to 4 pixels (one pixel of the original), not mirrored.

    Source: UCI Machine Learning Repository, Optical Recognition of Handwritten Digits.

    Args:
        augment: shift training images.

    Raises:
        DataSetUnavailableError: scikit-learn's packaged file is missing or broken.
    """
    images, targets, parts = digit_arrays()
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
        name: name of the data set.
        images: pixels with values 0 to 16.
        targets: classes [N].
        parts: indices of train, val and test.
        shape: number of equal channels, side and number of classes.
        augment: whether to shift training images.
    """
    channels, size, classes = shape
    small = torch.from_numpy(images)[:, None].to(torch.float32) * (255 / LEVELS)
    large = functional.interpolate(small, (size, size), mode="bilinear", antialias=False)
    pixels = large.round().to(torch.uint8).expand(-1, channels, -1, -1).numpy()
    share = pixels[parts[0], 0].astype(np.float64) / 255
    preprocessing = ImagePreprocessing((float(share.mean()),) * channels, (float(share.std()),) * channels)
    train, test = ImageArrays(pixels, targets), ImageArrays(pixels[parts[2]], targets[parts[2]])
    names = tuple(map(str, range(classes)))
    dataset = image_dataset(name, train, test, (parts[0], parts[1]), names, preprocessing, augment, flip=False)
    return replace(dataset, split_hash=hash_of_splits(*parts))


# As text, each inked pixel is a word for its position and darkness, so a digit is a sentence of up to 64 words. As
# trees, the words of the image at 4x4 are joined in pairs. Networks still learn to classify real data.
STAND_IN = "digits_stand_in"
SHADES = 4  # 17 grey levels as four words per position; white is no word
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


@DATASETS.add(STAND_IN, size=_on_paper)
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
        form: `images`, uint8 [N, channels, size, size]; `tokens`, int32 [N, 64]; `trees`, int32 [N, 31, 4].
        channels: number of equal channels of an image [CIFAR].
        size: side of an image; bilinear enlargement [CIFAR].
        classes: the class is the digit modulo `classes` [there are ten digits].
        train_samples: number of the first training samples of `digits`, at most all
            [a rehearsal of minutes on two cores].
        validation_samples: number of the first validation samples [as above].
        test_samples: number of the first test samples [as above].
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
        return enlarged_digits(STAND_IN, images, targets, parts, (channels, size, classes), augment)
    encoded = _sentences(images) if form == "tokens" else _trees(images)
    names = tuple(map(str, range(classes)))
    return divided(STAND_IN, encoded, targets, parts, classes, class_names=names, vocabulary=VOCABULARY)


def _words(shades: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the word of each position from its shade, 0 (no word) to SHADES: int [N, positions]."""
    places = np.arange(shades.shape[1])
    return np.where(shades > 0, FIRST_WORD + places * SHADES + shades - 1, 0).astype(np.int32)


def _sentences(images: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return images [N, 8, 8] as token ids [N, 64]: padding, then the words of the inked positions."""
    shades = np.ceil(images.reshape(len(images), PLACES) * (SHADES / LEVELS)).astype(np.int64)
    words = _words(shades)
    # stable: the words keep the order of the pixels
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
    """Return a balanced tree over the words; its labels are unused."""
    if len(words) == 1:
        return Tree(0, words[0])
    middle = len(words) // 2
    return Tree(0, children=(_halved(words[:middle]), _halved(words[middle:])))

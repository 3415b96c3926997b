"""Fashion-MNIST (Xiao et al. 2017), from the published IDX files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.base import DATASETS, DataSet
from trainables.datasets.cache import Download, Folder, Source, data_folder, fetch
from trainables.datasets.image_stream import ImagePreprocessing
from trainables.datasets.images import (
    Augment,
    ImageArrays,
    ImageSize,
    LabelNoise,
    flip_labels,
    held_out,
    image_dataset,
    images_on_paper,
)
from trainables.registry import DataSetSize, Options

SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
#: Folder of Debian's package `dataset-fashion-mnist`, which recompresses the files: only their contents are equal.
PACKAGED = Path("/usr/share/datasets")

SOURCES = {
    key: Source(f"{SITE}/{file_name}", f"fashion-mnist/{file_name}", f"unpacked md5:{md5}", "dataset-fashion-mnist")
    for key, file_name, md5 in (
        ("train_images", "train-images-idx3-ubyte.gz", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        ("train_labels", "train-labels-idx1-ubyte.gz", "9018921c3c673c538a1fc5bad174d6f9"),
        ("test_images", "t10k-images-idx3-ubyte.gz", "8181f5470baa50b63fa0f6fddb340f0a"),
        ("test_labels", "t10k-labels-idx1-ubyte.gz", "15d484375f8d13e6eb1aabb0c3f46965"),
    )
}
CLASS_NAMES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
MEAN = (0.2860,)
STD = (0.3530,)
TRAINING_SAMPLES = 54_000


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read a published gzipped IDX file of unsigned bytes.

    Format (LeCun): two zero bytes, type code, number of dimensions, each size as a big-endian 32-bit integer, data.
    """
    with gzip.open(path, "rb") as file:
        content = file.read()
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _size(options: Options) -> DataSetSize:
    return images_on_paper((1, 28, 28), 10, options.get("samples", TRAINING_SAMPLES), 6_000, 10_000)(options)


@DATASETS.add("fashion_mnist", size=_size)
def load_fashion_mnist(
    folder: Folder = None,
    download: Download = False,
    augment: Augment = True,
    image_size: ImageSize = None,
    samples: Annotated[int, f"[100, {TRAINING_SAMPLES}]: images to train on, the same share of each class"] = (
        TRAINING_SAMPLES
    ),
    label_noise: LabelNoise = 0.0,
) -> DataSet:
    """Fashion-MNIST, 28x28 grey images.

    Load Fashion-MNIST: 60,000 training images, a stratified tenth of them for validation, 10,000 test images.

    Source: Xiao et al. 2017.

    Args:
        folder: folder of `fashion-mnist/*.gz`; see `data_folder`. `None` uses the files of Debian's package
            `dataset-fashion-mnist` if that folder has none.
        download: download missing files.
        augment: crop and flip training images.
        image_size: resize batches to this side; `None` keeps 28.
        samples: number of training images, drawn as the same share of each class; validation and test stay complete
            [all that are not held out for validation].
        label_noise: share of training labels that are flipped; validation and test labels stay correct.

    Raises:
        DataSetUnavailableError: files are missing, or others than the published ones.
    """
    root = _root(folder)
    # `fetch` compares checksums, so what is read are the published bytes
    files = {key: fetch(source, root, download) for key, source in SOURCES.items()}
    splits = {}
    for part in ("train", "test"):
        images = read_idx(files[f"{part}_images"], 3)
        labels = read_idx(files[f"{part}_labels"], 1).astype(np.int64)
        splits[part] = ImageArrays(images[:, None], labels)
    train = splits["train"]
    parts = held_out(train.targets, "stratified", class_fraction=samples / TRAINING_SAMPLES)
    # a copy: the clean labels belong to the validation images, too
    targets = train.targets.copy()
    targets[parts[0]] = flip_labels(targets[parts[0]], label_noise, len(CLASS_NAMES))
    noisy, preprocessing = ImageArrays(train.images, targets), ImagePreprocessing(MEAN, STD, image_size)
    return image_dataset("fashion_mnist", noisy, splits["test"], parts, CLASS_NAMES, preprocessing, augment)


def _root(folder: str | None) -> Path:
    """Return the folder that contains `fashion-mnist`, or into which it is downloaded."""
    root = data_folder(folder)
    packaged = folder is None and not (root / "fashion-mnist").exists() and (PACKAGED / "fashion-mnist").exists()
    return PACKAGED if packaged else root

"""Tiny-ImageNet: 200 classes of 64x64 images, from the published folder tree (Stanford CS231n).

tiny-imagenet-200/wnids.txt                                 the classes
tiny-imagenet-200/train/<class>/images/*.JPEG               500 each
tiny-imagenet-200/val/images/*.JPEG, val_annotations.txt    50 each: the test set here, as in mukhoti App. D
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.base import DATASETS, DataSet, stratified_split
from trainables.datasets.cache import DataSetUnavailableError, Download, Folder, Source, fetched_folder
from trainables.datasets.image_files import decoded_images, image_paths
from trainables.datasets.image_stream import IMAGENET
from trainables.datasets.images import Augment, ImageArrays, ImageSize, image_dataset, images_on_paper
from trainables.registry import DataSetSize, Options

SOURCE = Source(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip", "tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de"
)
MEMBER = "tiny-imagenet-200"
SPLIT_SEED = 42
STORED_SIDE = 64  # of the published images
REMEDY = "delete the folder and give the data set download: true"


def read_classes(folder: Path) -> list[str]:
    """Return the class identifiers of `wnids.txt`, sorted, as mukhoti's released code numbers them.

    Raises:
        DataSetUnavailableError: the file is missing or empty.
    """
    path = folder / "wnids.txt"
    names = sorted(path.read_text().split()) if path.is_file() else []
    if not names:
        raise DataSetUnavailableError(path, "the list of classes is missing or empty", REMEDY)
    return names


def training_files(folder: Path, classes: list[str]) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the paths and classes of the training images.

    Raises:
        DataSetUnavailableError: a class has no images, or classes differ in number of images.
    """
    paths, counts = [], []
    for name in classes:
        images = image_paths(folder / "train" / name / "images")
        paths += images
        counts.append(len(images))
    if len(set(counts)) > 1:
        raise DataSetUnavailableError(
            folder / "train", f"contains {min(counts)} images of some classes and {max(counts)} of others", REMEDY
        )
    return paths, np.repeat(np.arange(len(classes)), counts).astype(np.int64)


def validation_files(folder: Path, classes: list[str]) -> tuple[list[Path], NDArray[np.int64]]:
    """Return the paths and classes of the official validation images, in the order of `val_annotations.txt`.

    Raises:
        DataSetUnavailableError: the annotations are missing, or name an unknown class or a missing image.
    """
    annotations = folder / "val" / "val_annotations.txt"
    if not annotations.is_file():
        raise DataSetUnavailableError(annotations, "the file is missing", REMEDY)
    number = {name: index for index, name in enumerate(classes)}
    paths, targets = [], []
    for line in annotations.read_text().splitlines():
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in number:
            raise DataSetUnavailableError(annotations, f"has a line without a known class: {line!r}", REMEDY)
        path = folder / "val" / "images" / fields[0]
        if not path.is_file():
            raise DataSetUnavailableError(path, "the image is missing", REMEDY)
        paths.append(path)
        targets.append(number[fields[1]])
    return paths, np.array(targets, np.int64)


def _size(options: Options) -> DataSetSize:
    val = round(100_000 * options.get("held_out", 0.1))
    return images_on_paper((3, 64, 64), 200, 100_000 - val, val, 10_000)(options)


@DATASETS.add("tiny_imagenet", size=_size)
def load_tiny_imagenet(
    folder: Folder = None,
    download: Download = False,
    augment: Augment = True,
    image_size: ImageSize = None,
    held_out: Annotated[float, "(0, 1)"] = 0.1,
) -> DataSet:
    """Tiny-ImageNet, 200 classes, 64x64; image_size: 224 for transformers.

    Load Tiny-ImageNet: 90,000 training images, 50 of each class held out for validation, 10,000 test images.

    Images stay 64x64 and uint8 on the device; batches are resized there to `image_size`.

    Source: mukhoti App. D; selective.

    Args:
        folder: folder of the archive or its unpacked folder; see `data_folder`.
        download: download the archive if it is missing.
        augment: crop by up to 4 pixels and flip training images.
        image_size: side of the network's input, e.g. 224; `None` keeps 64.
        held_out: share of each class for validation: 50 of 500, 25 in the selective paper [mukhoti App. D; selective
            App. E.1: 0.05].

    Raises:
        DataSetUnavailableError: files are missing or broken.
    """
    unpacked = fetched_folder(SOURCE, MEMBER, folder, download)
    classes = read_classes(unpacked)
    train_paths, train_targets = training_files(unpacked, classes)
    test_paths, test_targets = validation_files(unpacked, classes)
    rows, val = stratified_split(train_targets, (held_out,), SPLIT_SEED)
    train = ImageArrays(decoded_images("tiny-imagenet-train", train_paths, STORED_SIDE), train_targets)
    test = ImageArrays(decoded_images("tiny-imagenet-val", test_paths, STORED_SIDE), test_targets)
    preprocessing = replace(IMAGENET, size=image_size)
    return image_dataset("tiny_imagenet", train, test, (rows, val), classes, preprocessing, augment)

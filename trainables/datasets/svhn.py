"""Street View House Numbers, cropped digits (Netzer et al. 2011), from the published MATLAB files."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from trainables.datasets.base import DATASETS, DataSet
from trainables.datasets.cache import DataSetUnavailableError, Download, Folder, Source, data_folder, fetch, refused
from trainables.datasets.image_stream import ImagePreprocessing
from trainables.datasets.images import Augment, ImageArrays, ImageSize, held_out, image_dataset, images_on_paper

SOURCES = tuple(
    Source(f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat", f"{part}_32x32.mat", f"md5:{md5}")
    for part, md5 in (("train", "e26dedcc434d2e4c54c9b2d4a06d8373"), ("test", "eb5a983be6a315427106f1b164d9cef3"))
)
MEAN = (0.4377, 0.4438, 0.4728)
STD = (0.1980, 0.2010, 0.1970)
REMEDY = "delete it and give the data set download: true"


def read_mat(path: Path) -> ImageArrays:
    """Read images and digits; MATLAB's label 10 is the digit 0.

    Raises:
        DataSetUnavailableError: the file is truncated, broken or holds other arrays.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    broken = (MatReadError, ValueError, TypeError, OSError, EOFError, IndexError, zlib.error)
    with refused(path, "cannot be read as a MATLAB file", REMEDY, *broken):
        content = loadmat(str(path), variable_names=["X", "y"])
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DataSetUnavailableError(path, "does not contain images X [32, 32, 3, N] and labels y", REMEDY)
    targets = labels.astype(np.int64).reshape(-1)
    if len(targets) != images.shape[3] or not (targets.min() >= 1 and targets.max() <= 10):
        raise DataSetUnavailableError(path, "does not contain one label from 1 to 10 for each image", REMEDY)
    # MATLAB stores [H, W, C, N] in column order: a view would make every batch gather with strides
    pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1)).astype(np.uint8, copy=False)
    return ImageArrays(pixels, targets % 10)


@DATASETS.add("svhn", size=images_on_paper((3, 32, 32), 10, 65_931, 7_326, 26_032))
def load_svhn(
    folder: Folder = None, download: Download = False, augment: Augment = True, image_size: ImageSize = None
) -> DataSet:
    """Street View House Numbers, cropped digits.

    Load SVHN: 73,257 training images, a stratified tenth of them for validation, and 26,032 test images.

    The extra training images are not used, as in the posterior paper. Digits are not mirrored.

    Source: posterior; Netzer et al. 2011.

    Args:
        folder: folder of the .mat files; see `data_folder`.
        download: download missing files.
        augment: crop training images.
        image_size: resize batches to this side; `None` keeps 32.

    Raises:
        DataSetUnavailableError: files are missing or broken.
    """
    train, test = (read_mat(fetch(source, data_folder(folder), download)) for source in SOURCES)
    parts, preprocessing = held_out(train.targets, "stratified"), ImagePreprocessing(MEAN, STD, image_size)
    return image_dataset("svhn", train, test, parts, "0123456789", preprocessing, augment, flip=False)

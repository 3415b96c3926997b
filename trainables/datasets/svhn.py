"""Street View House Numbers, cropped digits (Netzer et al. 2011), from the published MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainables.datasets.base import DATASETS, DataSet
from trainables.datasets.cache import Download, Folder, Source, data_folder, fetch
from trainables.datasets.image_stream import ImagePreprocessing
from trainables.datasets.images import Augment, ImageArrays, ImageSize, held_out, image_dataset, images_on_paper

SOURCES = tuple(
    Source(f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat", f"{part}_32x32.mat", f"md5:{md5}")
    for part, md5 in (("train", "e26dedcc434d2e4c54c9b2d4a06d8373"), ("test", "eb5a983be6a315427106f1b164d9cef3"))
)
MEAN = (0.4377, 0.4438, 0.4728)
STD = (0.1980, 0.2010, 0.1970)


def read_mat(path: Path) -> ImageArrays:
    """Read images and digits of a published file; MATLAB's label 10 is the digit 0."""
    from scipy.io import loadmat

    content = loadmat(str(path), variable_names=["X", "y"])
    # MATLAB stores [H, W, C, N] in column order: a view would make every batch gather with strides
    pixels = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
    return ImageArrays(pixels, content["y"].astype(np.int64).reshape(-1) % 10)


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
        DataSetUnavailableError: files are missing, or others than the published ones.
    """
    # `fetch` compares checksums, so what is read are the published bytes
    train, test = (read_mat(fetch(source, data_folder(folder), download)) for source in SOURCES)
    parts, preprocessing = held_out(train.targets, "stratified"), ImagePreprocessing(MEAN, STD, image_size)
    return image_dataset("svhn", train, test, parts, "0123456789", preprocessing, augment, flip=False)

"""A folder of the user's own images, one sub-folder per class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.base import DATASETS, DataSet, Fraction, stratified_split
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.image_files import class_folders, decoded_images, image_paths
from trainables.datasets.image_stream import IMAGENET_MEAN, IMAGENET_STD, CropAndFlip, ImagePreprocessing
from trainables.datasets.images import Augment, ImageArrays, image_dataset

SPLIT_SEED = 42


def labelled_images(folder: Path, names: list[str], size: int) -> ImageArrays:
    """Decode the images of every class folder below `folder`; classes are numbered as `names`.

    Raises:
        DataSetUnavailableError: the class folders are other ones, or an image is broken.
    """
    found = [path.name for path in class_folders(folder)]
    if found != names:
        odd = sorted(set(found) ^ set(names))
        raise DataSetUnavailableError(
            folder, f"has other classes than the training images: {', '.join(odd)}", "give both the same sub-folders"
        )
    paths = [image_paths(folder / name) for name in names]
    targets = np.repeat(np.arange(len(names)), [len(group) for group in paths]).astype(np.int64)
    flat = [path for group in paths for path in group]
    return ImageArrays(decoded_images(f"image-folder-{folder.name}", flat, size), targets)


@DATASETS.add("image_folder")
def load_image_folder(
    folder: str,
    image_size: Annotated[int, "[1, inf)"] = 32,
    validation_fraction: Fraction = 0.1,
    test_fraction: Fraction = 0.2,
    augment: Augment = True,
) -> DataSet:
    """Your own images, a sub-folder for each class.

    Load a folder of images: `folder/<class>/*.png`, or `folder/train/<class>/…` with `folder/test/<class>/…`.

    Without a `test` folder, a stratified share becomes the test set; validation is a stratified share of the rest.
    Images are cut to their central square and resized to `image_size`.

    Args:
        folder: the folder.
        image_size: side of the stored images and of the network's input [our choice].
        validation_fraction: share for validation: of all images, or of `train` where there is a `test` folder.
        test_fraction: share for testing where there is no `test` folder.
        augment: crop and flip training images.

    Raises:
        DataSetUnavailableError: the folder is missing, has no class folders, or an image is broken.
    """
    root = Path(folder).expanduser()
    separate_test = (root / "test").is_dir() and (root / "train").is_dir()
    source = root / "train" if separate_test else root
    names = [path.name for path in class_folders(source)]
    arrays = labelled_images(source, names, image_size)
    if separate_test:
        train, val = stratified_split(arrays.targets, (validation_fraction,), SPLIT_SEED)
        test = labelled_images(root / "test", names, image_size)
    else:
        train, val, chosen = stratified_split(arrays.targets, (validation_fraction, test_fraction), SPLIT_SEED)
        test = ImageArrays(arrays.images[chosen], arrays.targets[chosen])
    _require_every_class(root, arrays.targets[train], names)
    preprocessing = ImagePreprocessing(IMAGENET_MEAN, IMAGENET_STD)
    augmentation = CropAndFlip() if augment else None
    return image_dataset("image_folder", arrays, test, (train, val), names, preprocessing, augmentation)


def _require_every_class(folder: Path, targets: NDArray[np.generic], names: list[str]) -> None:
    missing = sorted(set(range(len(names))) - set(targets.tolist()))
    if missing:
        raise DataSetUnavailableError(
            folder / names[missing[0]], "has too few images to train on", "add images, or lower the fractions held out"
        )

"""Folders of images, one a class, or one for all with a table of classes; listed once a node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.cache import prepared_arrays
from trainables.datasets.errors import DataSetUnavailableError
from trainables.datasets.image_files import EXTENSIONS
from trainables.datasets.stored_images import StoredImages, arrays_of


def listed_folders(name: str, root: Path, classes: Sequence[str]) -> StoredImages:
    """Return the images in `root/<class>/`, by class and name.

    The list is kept until a folder's time of change is another one, as it is when an image is added or removed.

    Args:
        name: of the data set, for the folder that keeps the list.
        root: folder of the class folders.
        classes: names of these, in the order of the classes.

    Raises:
        DataSetUnavailableError: a class has no folder, or no image.
    """

    def build() -> dict[str, NDArray[np.generic]]:
        names, sizes, targets = [], [], []
        for target, label in enumerate(classes):
            found = _images(root / label)
            if not found:
                raise DataSetUnavailableError(root / label, "contains no images", "put the class's images there")
            names += [f"{label}/{file}" for file, _ in found]
            sizes += [size for _, size in found]
            targets += [target] * len(found)
        return arrays_of(names, range(len(names)), [0] * len(names), sizes, targets)

    folders = [root / label for label in classes]
    missing = next((folder for folder in folders if not folder.is_dir()), None)
    if missing is not None:
        raise DataSetUnavailableError(missing, "the class's folder is missing", "give every split the same sub-folders")
    return StoredImages(root, prepared_arrays(name, folders, f"folders 1 {root}", build))


def listed_files(name: str, root: Path, targets: Mapping[str, int]) -> StoredImages:
    """Return the images in `root` itself, by name.

    Args:
        name: of the data set, for the folder that keeps the list.
        root: the folder.
        targets: the classes of the images, by their names without extension.

    Raises:
        DataSetUnavailableError: there are none, or one has no class.
    """

    def build() -> dict[str, NDArray[np.generic]]:
        found = _images(root)
        unknown = next((file for file, _ in found if Path(file).stem not in targets), None)
        if unknown is not None or not found:
            rule = "contains no images" if unknown is None else f"contains {unknown}, whose class is not known"
            raise DataSetUnavailableError(root, rule, "give each image its class")
        names, classes = [file for file, _ in found], [targets[Path(file).stem] for file, _ in found]
        return arrays_of(names, range(len(names)), [0] * len(names), [size for _, size in found], classes)

    settings = f"files 1 {root} {hash_of(targets)}"
    return StoredImages(root, prepared_arrays(name, [root], settings, build))


def hash_of(targets: Mapping[str, int]) -> str:
    """Return a digest of a table of classes."""
    import hashlib

    return hashlib.sha256(repr(sorted(targets.items())).encode()).hexdigest()


def _images(folder: Path) -> list[tuple[str, int]]:
    """Return name and size of every image in a folder, by name."""
    with os.scandir(folder) as entries:
        kept = [each for each in entries if Path(each.name).suffix.lower() in EXTENSIONS]
        return sorted((each.name, each.stat().st_size) for each in kept)

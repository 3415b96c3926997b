"""Your own images in class folders, held in memory or decoded as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch

from trainables.datasets.base import DATASETS, DataSet, Fraction, Indices, Split, hash_of_splits, stratified_split
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.image_files import (
    EXTENSIONS,
    StoredImages,
    class_folders,
    decoded_images,
    image_paths,
    listed_folders,
    visible_folders,
)
from trainables.datasets.image_stream import IMAGENET, Decoders, ImageStream, View
from trainables.datasets.images import Augment, ImageArrays, image_dataset
from trainables.registry import SPLITS, hyperparameters_of

SPLIT_SEED = 42

#: Names of the folders of a split, in lower case.
SPLIT_WORDS = {"train": {"train", "training"}, "val": {"val", "valid", "validation"}, "test": {"test", "testing"}}

Images = TypeVar("Images", ImageArrays, StoredImages)


def labelled_images(folder: Path, names: Sequence[str], size: int) -> ImageArrays:
    """Decode the images of the class folders `names` below `folder`; classes are numbered in this order.

    Raises:
        DataSetUnavailableError: an image is broken.
    """
    paths = [image_paths(folder / name) for name in names]
    targets = np.repeat(np.arange(len(names)), [len(group) for group in paths]).astype(np.int64)
    flat = [path for group in paths for path in group]
    return ImageArrays(decoded_images(f"image-folder-{folder.name}", flat, size), targets)


def split_folders(root: Path) -> tuple[dict[str, Path], list[str]]:
    """Return split → the folder of its class folders, and the names of the classes.

    Sub-folders named after splits are splits if they have sub-folders themselves. Otherwise each sub-folder is a class,
    and `root` is `train`.

    Raises:
        DataSetUnavailableError: there is no `train`, there are images outside the splits, or classes differ.
    """
    inside = visible_folders(root)
    divided = [path for path in inside if visible_folders(path)]
    named = {part: [path for path in divided if path.name.lower() in words] for part, words in SPLIT_WORDS.items()}
    folders = {part: paths[0] for part, paths in named.items() if paths}
    if not folders:
        return {"train": root}, [path.name for path in class_folders(root)]
    remedy = "name the folders of splits train, val and test, each with the same sub-folders for its classes"
    if doubled := [paths for paths in named.values() if len(paths) > 1]:
        raise DataSetUnavailableError(root, f"has {' and '.join(path.name for path in doubled[0])}, one split", remedy)
    if "train" not in folders:
        raise DataSetUnavailableError(root, f"has {' and '.join(folders)}, and no train", remedy)
    beside = [path for path in inside if path not in folders.values()]
    if odd := next(
        (path for path in beside if any(file.suffix.lower() in EXTENSIONS for file in path.rglob("*"))), None
    ):
        raise DataSetUnavailableError(root, f"has images in {odd.name} beside the splits {', '.join(folders)}", remedy)
    names = [path.name for path in class_folders(folders["train"])]
    for part, folder in folders.items():
        if wrong := sorted({path.name for path in visible_folders(folder)} ^ set(names)):
            rule = f"has other classes than the training images: {', '.join(wrong)}"
            raise DataSetUnavailableError(folder, rule, f"give {part} and train the same sub-folders")
    return folders, names


@DATASETS.add("image_folder")
def load_image_folder(
    folder: str,
    image_size: Annotated[int, "[1, inf)"] = 32,
    validation_fraction: Fraction = 0.1,
    test_fraction: Fraction = 0.2,
    augment: Augment = True,
) -> DataSet:
    """Your own images, a sub-folder for each class.

    Load a folder of images: `folder/<class>/*.png`, or `folder/train/<class>/…` with `folder/val/<class>/…` and
    `folder/test/<class>/…`.

    Without a `val` or `test` folder, a stratified share becomes that split. Images are cut to their central square and
    resized to `image_size`.

    Args:
        folder: the folder.
        image_size: side of the stored images and of the network's input [our choice].
        validation_fraction: share for validation, where there is no `val` folder.
        test_fraction: share for testing, where there is no `test` folder.
        augment: crop and flip training images.

    Raises:
        DataSetUnavailableError: the folder is missing, has no class folders, or an image is broken.
    """
    folders, names = split_folders(Path(folder).expanduser())
    groups = {part: labelled_images(path, names, image_size) for part, path in folders.items()}
    parts = _parts(groups, {"val": validation_fraction, "test": test_fraction})
    arrays, (train, val) = groups["train"], (parts[part][1] for part in ("train", "val"))
    # a class without training images would never be predicted; the draw can take all images of a small class
    if lacking := sorted(set(range(len(names))) - set(arrays.targets[train].tolist())):
        rule, remedy = "has too few images to train on", "add images, or lower the fractions held out"
        raise DataSetUnavailableError(folders["train"] / names[lacking[0]], rule, remedy)
    # images of a `val` folder are appended to the training images, because `image_dataset` takes both from one array
    if "val" in groups:
        val, own = val + len(arrays.targets), (arrays, groups["val"])
        arrays = ImageArrays(*(np.concatenate([getattr(part, name) for part in own]) for name in ("images", "targets")))
    images, rows = parts["test"]
    test = ImageArrays(images.images[rows], images.targets[rows])
    return image_dataset("image_folder", arrays, test, (train, val), names, IMAGENET, augment)


#: Share of a resized image's shorter side in the evaluated centre: 224 of 256 (He et al. 2016, section 3.4).
MIDDLE = 0.875


@dataclass(frozen=True)
class Decoding:
    """Options of decoding, shared by both streamed data sets.

    Attributes:
        image_size: side of the network's input.
        augment: random resized crops and flips of training images.
        area: smallest share of an image that such a crop takes [Szegedy et al. 2015, section 6].
        randaugment: number of RandAugment operations per image; 0 for none [Cubuk et al. 2020: 2 for ResNet-50].
        magnitude: magnitude of the RandAugment operations [Cubuk et al. 2020: 9 for ResNet-50].
        workers: number of decoding processes; resources.cpu by default.
    """

    image_size: int
    augment: Augment = True
    area: Annotated[float, "(0, 1]"] = 0.08
    randaugment: Annotated[int, "[0, inf)"] = 0
    magnitude: Annotated[int, "[0, 30]"] = 9
    workers: Annotated[int | None, "[0, inf)"] = None

    @property
    def middle(self) -> View:
        """Transformation for evaluations."""
        return View(self.image_size, round(self.image_size / MIDDLE))

    @property
    def training(self) -> View:
        """Random transformation for training."""
        return View(self.image_size, 0, self.area, True, self.randaugment, self.magnitude)


DECODING = hyperparameters_of(Decoding, "Decoding", ["image_size"], ())


def streamed_dataset(
    name: str, parts: Mapping[str, tuple[StoredImages, Indices]], names: Sequence[str], decoding: Decoding
) -> DataSet:
    """Return a data set whose inputs are read from files.

    Args:
        name: name of the data set.
        parts: split -> stored images and the indices that the split takes.
        names: names of the classes.
        decoding: options of decoding.
    """
    # by identity: splits of the same images share a pool, and with it the workers' index
    pools = [*{id(images): images for images, _ in parts.values()}.values()]
    decoders = Decoders(pools, decoding.workers)
    shape = (3, decoding.image_size, decoding.image_size)

    def split(part: str) -> Split:
        images, rows = parts[part]
        number = next(at for at, pool in enumerate(pools) if pool is images)
        changed = decoding.training if part == "train" and decoding.augment else None
        return Split(
            torch.empty((len(rows), *shape), dtype=torch.uint8, device="meta"),
            torch.from_numpy(images.targets[rows]),
            IMAGENET,
            source=ImageStream(number, images, torch.from_numpy(rows), decoding.middle, decoders, changed),
        )

    chosen = hash_of_splits(*(parts[part][1] for part in SPLITS))
    # Indices alone do not identify samples of files that can change: the hash includes the fingerprint of the files.
    whole = hashlib.sha256("\0".join([chosen, *(pool.fingerprint() for pool in pools)]).encode()).hexdigest()
    train, val, test = map(split, SPLITS)
    return DataSet(name, train, val, test, len(names), shape, whole, tuple(names))


@DATASETS.add("streamed_images", more=DECODING)
def load_streamed_images(
    folder: str,
    image_size: Annotated[int, "[1, inf)"] = 224,
    validation_fraction: Fraction = 0.1,
    test_fraction: Fraction = 0.2,
    **options: Any,
) -> DataSet:
    """Your own images, more than memory holds, in class folders.

    Load images that stay on disk, in folders of classes, divided as `image_folder` divides them.

    A missing validation or test split is a stratified share of the training images.

    Args:
        folder: folder of class folders.
        image_size: side of the network's input [He et al. 2016, section 3.4].
        validation_fraction: share for validation if there is no such split.
        test_fraction: share for testing if there is no such split.
        options: other options of `Decoding`.

    Raises:
        DataSetUnavailableError: files are missing or broken, or classes differ.
    """
    root = Path(folder).expanduser()
    folders, names = split_folders(root)
    groups = {part: listed_folders(f"{root.name}-{part}", path, names) for part, path in folders.items()}
    parts = _parts(groups, {"val": validation_fraction, "test": test_fraction})
    for part, (images, rows) in parts.items():
        targets = images.targets[rows]
        if not len(rows) or (part == "train" and len(np.unique(targets)) < len(names)):
            raise DataSetUnavailableError(root, f"has too few images in {part}", "add images, or change the fractions")
    return streamed_dataset("streamed_images", parts, names, Decoding(image_size, **options))


def _parts(groups: Mapping[str, Images], shares: Mapping[str, float]) -> dict[str, tuple[Images, Indices]]:
    """Return the images and indices of each split: its own images, or a share of the training images."""
    images = groups["train"]
    missing = [part for part in shares if part not in groups]
    train, *drawn = stratified_split(images.targets, [shares[part] for part in missing], SPLIT_SEED)
    parts = {"train": train, **dict(zip(missing, drawn, strict=True))}
    own = {part: (group, np.arange(len(group.targets))) for part, group in groups.items() if part != "train"}
    return {part: (images, rows) for part, rows in parts.items()} | own

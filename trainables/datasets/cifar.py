"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), from the published Python archives.

The archives contain pickles. An unpickler that builds only arrays reads them, so a file from another source cannot run
code.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import numpy as np

from trainables.datasets.base import DATASETS, DataSet
from trainables.datasets.cache import DataSetUnavailableError, Download, Folder, Source, fetched_folder, refused
from trainables.datasets.image_stream import ImagePreprocessing
from trainables.datasets.images import Augment, ImageArrays, ImageSize, held_out, image_dataset, images_on_paper

#: Number of training and test images.
SAMPLES = (50_000, 10_000)
REMEDY = "delete the folder and give the data set download: true"


@dataclass(frozen=True)
class Layout:
    """Differences between the two archives: members, keys, and the pixels' mean and standard deviation."""

    source: Source
    member: str
    train_files: tuple[str, ...]
    test_file: str
    label_key: bytes
    names_file: str
    names_key: bytes
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _archive(classes: int, md5: str) -> Source:
    name = f"cifar-{classes}-python.tar.gz"
    return Source(f"https://www.cs.toronto.edu/~kriz/{name}", name, f"md5:{md5}")


LAYOUTS = {
    "cifar10": Layout(
        _archive(10, "c58f30108f718f92721af3b95e74349a"), "cifar-10-batches-py",
        tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch",
        b"labels", "batches.meta", b"label_names", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010),
    ),
    "cifar100": Layout(
        _archive(100, "eb9058c3a382ffc7106e4002c42a8d85"), "cifar-100-python", ("train",), "test",
        b"fine_labels", "meta", b"fine_label_names", (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761),
    ),
}  # fmt: skip


class ArrayUnpickler(pickle.Unpickler):
    """Unpickle numbers, text, lists, dictionaries and numpy arrays; refuse anything else."""

    ALLOWED = (
        *((module, "_reconstruct") for module in ("numpy.core.multiarray", "numpy._core.multiarray")),
        *(("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")),
    )

    def __init__(self, file: IO[bytes]) -> None:
        """Read `file`, written by Python 2 or 3."""
        # the published files are from Python 2, whose texts are bytes
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function in `ALLOWED`."""
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it references {module}.{name}, which no CIFAR file does")
        return super().find_class(module, name)


def read_pickle(path: Path) -> dict[bytes, Any]:
    """Read one file of the archive.

    Raises:
        DataSetUnavailableError: the file is missing, truncated, unsafe, or not a dictionary.
    """
    if not path.exists():
        raise DataSetUnavailableError(path, "the file is missing", REMEDY)
    broken = (pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, AttributeError, KeyError)
    with refused(path, "cannot be read as a CIFAR file", REMEDY, *broken), path.open("rb") as file:
        content = ArrayUnpickler(file).load()
    if not isinstance(content, dict):
        raise DataSetUnavailableError(path, "does not contain a dictionary", REMEDY)
    return {key if isinstance(key, bytes) else str(key).encode(): value for key, value in content.items()}


def read_images(path: Path, label_key: bytes, classes: int) -> ImageArrays:
    """Read images and fine labels of one file.

    Raises:
        DataSetUnavailableError: as `read_pickle`, or the arrays have unexpected shapes or values.
    """
    content = read_pickle(path)
    data, labels = np.asarray(content.get(b"data")), np.asarray(content.get(label_key))
    if data.ndim != 2 or data.shape[1] != 3072 or data.dtype != np.uint8 or labels.shape != data.shape[:1]:
        raise DataSetUnavailableError(path, "does not contain rows of 3,072 uint8 pixels and a label for each", REMEDY)
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise DataSetUnavailableError(path, f"contains labels outside 0 to {classes - 1}", REMEDY)
    # a row holds 1,024 red, then green, then blue pixels
    return ImageArrays(data.reshape(-1, 3, 32, 32), labels.astype(np.int64))


def read_folder(folder: Path, layout: Layout) -> tuple[ImageArrays, ImageArrays, tuple[str, ...]]:
    """Read training set, test set and class names of an unpacked archive.

    Raises:
        DataSetUnavailableError: a file is missing, broken, or has an unexpected number of images.
    """
    names = read_pickle(folder / layout.names_file).get(layout.names_key, ())
    class_names = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)
    files = [read_images(folder / file, layout.label_key, len(class_names)) for file in layout.train_files]
    train = ImageArrays(
        np.concatenate([file.images for file in files]), np.concatenate([file.targets for file in files])
    )
    test = read_images(folder / layout.test_file, layout.label_key, len(class_names))
    for arrays, expected in zip((train, test), SAMPLES, strict=True):
        if len(arrays.targets) != expected:
            raise DataSetUnavailableError(
                folder, f"contains {len(arrays.targets):,} images; {expected:,} are expected", REMEDY
            )
    return train, test, class_names


def load_cifar(
    name: str,
    *,
    folder: Folder = None,
    download: Download = False,
    split: Literal["shuffled", "stratified"] = "shuffled",
    class_fraction: Annotated[float, "(0, 1]"] = 1.0,
    augment: Augment = True,
    image_size: ImageSize = None,
) -> DataSet:
    """Load CIFAR-10 or CIFAR-100 with 45,000 / 5,000 / 10,000 images.

    Args:
        name: `cifar10` or `cifar100`.
        folder: folder of the archive or its unpacked folder; see `data_folder`.
        download: download the archive if it is missing.
        split: `shuffled` (mukhoti) or `stratified` (selective); see `held_out` [mukhoti App. D; selective].
        class_fraction: share of each class kept for training [posterior's CIFAR10-s: 0.1].
        augment: crop and flip training images.
        image_size: resize batches to this side; `None` keeps 32.

    Raises:
        DataSetUnavailableError: files are missing or broken.
    """
    layout = LAYOUTS[name]
    unpacked = fetched_folder(layout.source, layout.member, folder, download)
    train, test, class_names = read_folder(unpacked, layout)
    parts = held_out(train.targets, split, class_fraction=class_fraction)
    preprocessing = ImagePreprocessing(layout.mean, layout.std, image_size)
    return image_dataset(name, train, test, parts, class_names, preprocessing, augment)


for _name, _classes in (("cifar10", 10), ("cifar100", 100)):
    DATASETS.add(
        _name,
        f"CIFAR-{_classes}, 45k/5k/10k",
        "Krizhevsky 2009",
        size=images_on_paper((3, 32, 32), _classes, 45_000, 5_000, 10_000),
    )(partial(load_cifar, _name))

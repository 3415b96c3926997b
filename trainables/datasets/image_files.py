"""Image files on disk: lists of the images in folders, and decoding once per node.

A `StoredImages` has the name, size and class of each image, in arrays that the processes of a node share. The images
are in folders, one per class or one for all with a table of classes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.datasets.cache import DataSetUnavailableError, prepared, prepared_arrays, refused

if TYPE_CHECKING:
    from PIL.Image import Image

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class StoredImages:
    """Image files.

    Attributes:
        root: folder of the files.
        arrays: `names`, the bytes of all file names relative to the root, uint8; and `ends`, the end of each name, the
            `size` and the class (`target`) of each image, int64 [N].
    """

    root: Path
    arrays: Arrays

    def __len__(self) -> int:
        return len(self.arrays["target"])

    @property
    def targets(self) -> NDArray[np.int64]:
        """Classes, int64 [N]."""
        return np.asarray(self.arrays["target"], np.int64)

    def path(self, index: int) -> Path:
        """Return the file of an image."""
        ends = self.arrays["ends"]
        name = self.arrays["names"][int(ends[index - 1]) if index else 0 : int(ends[index])]
        return self.root / os.fsdecode(name.tobytes())

    def read(self, index: int) -> bytes:
        """Return the bytes of an image.

        Raises:
            DataSetUnavailableError: its file is missing, or has another size than when it was listed.
        """
        path, size = self.path(index), int(self.arrays["size"][index])
        with refused(path, "cannot be read", "restore the file", OSError):
            content = path.read_bytes()
        if len(content) != size:
            rule = f"has {len(content)} bytes, and had {size} when it was listed"
            raise DataSetUnavailableError(path, rule, "the file was changed: start again")
        return content

    def fingerprint(self) -> str:
        """Return a digest of the name, size and class of each image, without reading pixels."""
        digest = hashlib.sha256()
        for key in sorted(self.arrays):
            digest.update(f"{key} {len(self.arrays[key])}\0".encode())
            digest.update(np.ascontiguousarray(self.arrays[key]).data)
        return digest.hexdigest()


def arrays_of(names: Sequence[str], size: Sequence[int], target: Sequence[int]) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of `StoredImages`."""
    encoded = [os.fsencode(name) for name in names]
    return {
        "names": np.frombuffer(b"".join(encoded), np.uint8),
        "ends": np.cumsum([len(name) for name in encoded], dtype=np.int64),
        "size": np.asarray(size, np.int64),
        "target": np.asarray(target, np.int64),
    }


EXTENSIONS = frozenset({".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff"})
DECODERS = 8  # threads: Pillow decodes without the interpreter's lock


def decode_image(path: Path, size: int | None) -> NDArray[np.uint8]:
    """Decode one file to uint8 [3, H, W]; with `size`, its central square is resized to that side.

    Raises:
        DataSetUnavailableError: the file is missing, truncated or not an image.
    """
    from PIL import Image

    remedy = "replace it with an intact copy, or remove it"
    readable = refused(path, "cannot be decoded as an image", remedy, OSError, SyntaxError, ValueError)
    with readable, Image.open(path) as file:
        return image_pixels(file, size)


def image_pixels(opened: Image, size: int | None) -> NDArray[np.uint8]:
    """Return a Pillow image as uint8 [3, H, W]; with `size`, its central square is resized to that side."""
    from PIL.Image import Resampling

    image = opened.convert("RGB")
    if size is not None:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.resize(
            (size, size), Resampling.BILINEAR, box=(left, top, left + side, top + side), reducing_gap=None
        )
    return np.asarray(image, np.uint8).transpose(2, 0, 1)


def decoded_images(name: str, paths: Sequence[Path], size: int | None) -> NDArray[np.uint8]:
    """Return all images, uint8 [N, 3, H, W], mapped from disk; the first process of a node decodes them.

    Raises:
        DataSetUnavailableError: a file is broken, or sizes differ.
    """

    def decode_all() -> Tensor:
        first = decode_image(paths[0], size)
        images = np.empty((len(paths), *first.shape), np.uint8)

        def decode_one(index: int) -> None:
            image = decode_image(paths[index], size)
            if image.shape != first.shape:
                raise DataSetUnavailableError(
                    paths[index],
                    f"has {image.shape[1]}x{image.shape[2]} pixels, others have {first.shape[1]}x{first.shape[2]}",
                    "give the data set image_size, to which all are resized",
                )
            images[index] = image

        with ThreadPoolExecutor(DECODERS) as decoders:
            for _ in decoders.map(decode_one, range(len(paths))):
                pass
        return torch.from_numpy(images)

    decoded: NDArray[np.uint8] = prepared(name, paths, f"image_size={size}", decode_all).numpy()
    return decoded


def visible_folders(folder: Path) -> list[Path]:
    """Return the sub-folders of `folder` by name, without hidden ones; none if it is not a folder."""
    inside = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in inside if path.is_dir() and not path.name.startswith("."))


def class_folders(folder: Path) -> list[Path]:
    """Return the sub-folders of `folder`, one per class, by name.

    Raises:
        DataSetUnavailableError: there are fewer than two.
    """
    folders = visible_folders(folder)
    if len(folders) < 2:
        raise DataSetUnavailableError(
            folder, "does not contain a sub-folder for each of two or more classes", "check the data set's folder"
        )
    return folders


def image_paths(folder: Path) -> list[Path]:
    """Return the image files below `folder`, by path.

    Raises:
        DataSetUnavailableError: there are none.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)
    if not paths:
        raise DataSetUnavailableError(
            folder, "contains no images", f"put images there ({', '.join(sorted(EXTENSIONS))})"
        )
    return paths


def listed_folders(name: str, root: Path, classes: Sequence[str]) -> StoredImages:
    """Return the images in `root/<class>/`, by class and name.

    The list is cached until the modification time of a folder changes, as when an image is added or removed.

    Args:
        name: name of the data set, for the folder that keeps the list.
        root: folder of the class folders.
        classes: names of the class folders, in the order of the classes.

    Raises:
        DataSetUnavailableError: a class has no folder, or no image.
    """

    def build() -> dict[str, NDArray[np.generic]]:
        names, sizes, targets = [], [], []
        for target, label in enumerate(classes):
            images = _images(root / label)
            if not images:
                raise DataSetUnavailableError(root / label, "contains no images", "put the class's images there")
            names += [f"{label}/{file}" for file, _ in images]
            sizes += [size for _, size in images]
            targets += [target] * len(images)
        return arrays_of(names, sizes, targets)

    folders = [root / label for label in classes]
    missing = next((folder for folder in folders if not folder.is_dir()), None)
    if missing is not None:
        raise DataSetUnavailableError(missing, "the class's folder is missing", "give every split the same sub-folders")
    return StoredImages(root, prepared_arrays(name, folders, f"folders 2 {root}", build))


def listed_files(name: str, root: Path, targets: Mapping[str, int]) -> StoredImages:
    """Return the images in `root` itself, by name.

    Args:
        name: name of the data set, for the folder that keeps the list.
        root: folder of the images.
        targets: image name without extension -> class.

    Raises:
        DataSetUnavailableError: there are none, or one has no class.
    """

    def build() -> dict[str, NDArray[np.generic]]:
        images = _images(root)
        unknown = next((file for file, _ in images if Path(file).stem not in targets), None)
        if unknown is not None or not images:
            rule = "contains no images" if unknown is None else f"contains {unknown}, whose class is not known"
            raise DataSetUnavailableError(root, rule, "give each image its class")
        names, classes = [file for file, _ in images], [targets[Path(file).stem] for file, _ in images]
        return arrays_of(names, [size for _, size in images], classes)

    digest = hashlib.sha256(repr(sorted(targets.items())).encode()).hexdigest()
    return StoredImages(root, prepared_arrays(name, [root], f"files 2 {root} {digest}", build))


def _images(folder: Path) -> list[tuple[str, int]]:
    """Return the name and size of each image in a folder, by name."""
    with os.scandir(folder) as entries:
        kept = [entry for entry in entries if Path(entry.name).suffix.lower() in EXTENSIONS]
        return sorted((entry.name, entry.stat().st_size) for entry in kept)

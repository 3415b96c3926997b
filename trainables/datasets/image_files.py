"""Decoding many image files once a node, and reading trees of class folders."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.cache import prepared_arrays
from trainables.datasets.errors import DataSetUnavailableError

if TYPE_CHECKING:
    from PIL.Image import Image

EXTENSIONS = frozenset({".jpeg", ".jpg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff"})
DECODERS = 8  # Pillow decodes without the interpreter's lock


def decode_image(path: Path, size: int | None) -> NDArray[np.uint8]:
    """Decode one file to uint8 [3, H, W]; with `size`, its central square is resized to that side.

    Raises:
        DataSetUnavailableError: the file is missing, truncated or no image.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            return image_pixels(file, size)
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError) as error:
        raise DataSetUnavailableError(
            path, f"cannot be decoded as an image ({error})", "replace it with an intact copy, or remove it"
        ) from error


def image_pixels(opened: Image, size: int | None) -> NDArray[np.uint8]:
    """Return an image of Pillow's as uint8 [3, H, W]; with `size`, its central square is resized to that side."""
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
    """Return all images, uint8 [N, 3, H, W] mapped from disk: decoded by the first process of a node to ask.

    Raises:
        DataSetUnavailableError: a file is broken, or sizes differ.
    """

    def decode_all() -> dict[str, NDArray[np.generic]]:
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
        return {"images": images}

    images = prepared_arrays(name, paths, f"image_size={size}", decode_all)["images"]
    return images.view(np.uint8)


def class_folders(folder: Path) -> list[Path]:
    """Return the sub-folders of `folder`, one per class, by name.

    Raises:
        DataSetUnavailableError: there are fewer than two.
    """
    folders = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
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

"""Small folders of images for tests of data sets that are decoded as they are read."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def jpeg(label: int, number: int, size: tuple[int, int] = (60, 48)) -> bytes:
    """Return an image whose colour tells its class, and whose noise its number."""
    random = np.random.default_rng(1000 * label + number)
    tint = np.array([90 * (label % 2), 40 * (label // 2), 60])
    pixels = (random.integers(0, 120, (6, 8, 3)) + tint).clip(0, 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR).save(content, "JPEG", quality=90)
    return content.getvalue()


def write_tree(folder: Path, classes: list[str], samples: int, extension: str = "JPEG") -> Path:
    """Write `folder/<class>/<class>_<number>.JPEG`; return the folder."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(samples):
            (folder / name / f"{name}_{number}.{extension}").write_bytes(jpeg(label, number))
    return folder

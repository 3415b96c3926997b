"""Small shards and folders of images for tests of data sets that are decoded as they are read."""

import io
import tarfile
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


def write_shard(path: Path, samples: list[dict[str, bytes]], first: int = 0) -> None:
    """Write a shard in webdataset's layout: of each sample, extension → content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for number, sample in enumerate(samples, start=first):
            for extension, content in sample.items():
                member = tarfile.TarInfo(f"{number:06d}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_shards(folder: Path, part: str, shards: int, samples: int, classes: int = 2) -> Path:
    """Write `shards` shards of `samples` samples each, whose classes take turns; return the folder."""
    for shard in range(shards):
        numbers = range(shard * samples, (shard + 1) * samples)
        content = [{"jpg": jpeg(n % classes, n), "cls": str(n % classes).encode()} for n in numbers]
        write_shard(folder / f"small-{part}-{shard:04d}.tar", content, numbers[0])
    return folder


def write_tree(folder: Path, classes: list[str], samples: int, extension: str = "JPEG") -> Path:
    """Write `folder/<class>/<class>_<number>.JPEG`; return the folder."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(samples):
            (folder / name / f"{name}_{number}.{extension}").write_bytes(jpeg(label, number))
    return folder

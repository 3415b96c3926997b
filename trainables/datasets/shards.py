"""Tar shards in the layout of webdataset: `key.jpg` beside `key.cls`, which holds the class as a number.

Python's `tarfile` reads every header once a node; afterwards an image is one read at a known offset, so that any order
is as good as another. A shard in an object store is copied to the node's disk first, where all trials share the pages
that the system caches. The `webdataset` library is not used: it reads shards from front to back and shuffles within a
buffer, which gives no exact order to resume in.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.cache import data_folder, locked, prepared_arrays, temporary_beside
from trainables.datasets.errors import DataSetUnavailableError
from trainables.datasets.image_files import EXTENSIONS
from trainables.datasets.stored_images import StoredImages, arrays_of

SUFFIX = ".tar"
KEY = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")
"""webdataset's: a member's name up to the first dot of its base name is the sample's key."""

SPLIT_WORDS = {
    "train": {"train", "training"},
    "val": {"val", "valid", "validation"},
    "test": {"test", "testing"},
}
"""Words in a shard's path that name its split."""

COPIES = 8
"""Shards copied from a store at once."""

LAYOUT = "write shards with an image (key.jpg) and its class as a number (key.cls) for each key"


def shard_paths(folder: Path) -> list[Path]:
    """Return the shards below `folder`, by path."""
    return sorted(path for path in folder.rglob(f"*{SUFFIX}") if path.is_file()) if folder.is_dir() else []


def shards_by_split(root: Path, paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Return split → its shards, by the words of their paths below `root`; all are `train` where no path names a split.

    Whole words count: `retrieval-train-0001.tar` is training data, though `val` is in it.

    Raises:
        DataSetUnavailableError: a path names two splits, some name none, or none names training data.
    """
    named: dict[Path, list[str]] = {}
    for path in paths:
        words = set(re.findall(r"[a-z]+", path.relative_to(root).as_posix().lower()))
        named[path] = [split for split, own in SPLIT_WORDS.items() if words & own]
    if not any(named.values()):
        return {"train": [*paths]}
    for path, splits in named.items():
        if len(splits) != 1:
            rule = f"names the splits {' and '.join(splits)}" if splits else "names no split, and other shards do"
            raise DataSetUnavailableError(path, rule, "name each shard, or its folder, after train, val or test")
    found: dict[str, list[Path]] = {}
    for path, (split,) in named.items():
        found.setdefault(split, []).append(path)
    if "train" not in found:
        raise DataSetUnavailableError(root, f"has shards of {' and '.join(found)}, and none of train", LAYOUT)
    return {split: found[split] for split in SPLIT_WORDS if split in found}


def indexed_shards(name: str, root: Path, paths: Sequence[Path]) -> StoredImages:
    """Return the images of shards, in the order of the shards and of their members; indexed once a node.

    Args:
        name: of the data set, for the folder that keeps the index.
        root: folder of the shards.
        paths: of the shards, below it.

    Raises:
        DataSetUnavailableError: a shard is truncated, holds no images, or one without a class.
    """
    return StoredImages(root, prepared_arrays(name, paths, "shards 1", lambda: _index(root, paths)))


def _index(root: Path, paths: Sequence[Path]) -> dict[str, NDArray[np.generic]]:
    columns: dict[str, list[int]] = {key: [] for key in ("file", "offset", "size", "target")}
    for number, path in enumerate(paths):
        for offset, size, target in _members(path):
            for key, value in zip(columns, (number, offset, size, target), strict=True):
                columns[key].append(value)
    names = [path.relative_to(root).as_posix() for path in paths]
    return arrays_of(names, *columns.values())


def _members(path: Path) -> list[tuple[int, int, int]]:
    """Return offset, size and class of every image of a shard."""
    images: dict[str, tuple[int, int]] = {}
    targets: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                match = KEY.fullmatch(member.name) if member.isfile() else None
                if match is None:
                    continue
                key, kind = match[1], match[2].lower()
                if f".{kind}" in EXTENSIONS:
                    if key in images:
                        raise DataSetUnavailableError(path, f"has two images with the key {key!r}", LAYOUT)
                    images[key] = member.offset_data, member.size
                elif kind in ("cls", "json"):
                    content = archive.extractfile(member)
                    assert content is not None
                    found = _class_of(kind, content.read())
                    if found is not None:
                        targets[key] = found
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataSetUnavailableError(path, f"cannot be read as a tar archive ({error})", "fetch it again") from error
    unknown = next((key for key in images if key not in targets), None)
    if unknown is not None or not images:
        rule = "holds no images" if unknown is None else f"has no class for {unknown!r}"
        raise DataSetUnavailableError(path, rule, LAYOUT)
    return [(*place, targets[key]) for key, place in images.items()]


def _class_of(kind: str, content: bytes) -> int | None:
    """Return the class in a `.cls` member, or under `label` in a `.json` one; `None` where there is none."""
    try:
        value = json.loads(content)
    except ValueError:
        return None
    if kind == "json":
        value = value.get("label") if isinstance(value, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def local_copy(address: str) -> Path:
    """Return the folder on this node's disk that has the shards at an address in an object store; copied once.

    A shard that is here with its size in the store is not copied again.

    Args:
        address: `s3://bucket/folder` or `gs://bucket/folder`, as `pyarrow.fs` reads it.

    Raises:
        DataSetUnavailableError: there is none, or the store or this disk does not do it.
    """
    from pyarrow import ArrowException, fs

    try:
        store, base = fs.FileSystem.from_uri(address)
        found = store.get_file_info(fs.FileSelector(base, recursive=True))
        sizes = {each.path: each.size for each in found if each.path.endswith((SUFFIX, ".json", ".txt"))}
        folder = data_folder() / "shards" / re.sub(r"[^\w.-]+", "_", base)
        targets = {path: place_inside(folder, path.removeprefix(base).lstrip("/"), address) for path in sizes}
        with locked(folder), ThreadPoolExecutor(COPIES) as pool:
            pending = [pool.submit(_copy, store, path, targets[path], size) for path, size in sizes.items()]
            for job in pending:
                job.result()
    except (OSError, ArrowException) as error:
        raise DataSetUnavailableError(
            address, f"cannot be copied from the store ({error})", "check address, credentials and disk space"
        ) from error
    return folder


def place_inside(folder: Path, name: str, address: str) -> Path:
    """Return the file that an object becomes below `folder`.

    Raises DataSetUnavailableError for a name that would leave it: who can write to a store chooses the names in it.
    """
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\\" in name or not name.isprintable():
        rule = f"holds an object whose name is no path below it: {name!r}"
        raise DataSetUnavailableError(address, rule, "remove it from the store, and find out who put it there")
    return folder / name


def _copy(store: object, path: str, target: Path, size: int) -> None:
    from pyarrow import fs

    if target.is_file() and target.stat().st_size == size:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(target) as temporary:
        fs.copy_files(
            path, str(temporary / target.name), source_filesystem=store, destination_filesystem=fs.LocalFileSystem()
        )
        (temporary / target.name).replace(target)

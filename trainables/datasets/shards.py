"""Tar shards in the layout of webdataset: `key.jpg`, and `key.cls` with the class as a number.

Python's `tarfile` reads all headers once per node; afterwards an image is one read at a known offset, in any order. A
shard in an object store is copied to the node's disk first, where all trials share the cached pages. The `webdataset`
library is not used: it reads shards from front to back and shuffles within a buffer, so a run could not resume in the
exact order.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.cache import (
    DataSetUnavailableError,
    data_folder,
    locked,
    prepared_arrays,
    refused,
    temporary_beside,
)
from trainables.datasets.image_files import EXTENSIONS, StoredImages, arrays_of
from trainables.files.atomic import write_text
from trainables.files.stores.base import Entry, StoreError
from trainables.files.stores.object_store import Store

SUFFIX = ".tar"
#: As in webdataset, the key of a sample is a member's name up to the first dot of its base name.
KEY = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)")

#: Words in the path of a shard that name its split.
SPLIT_WORDS = {"train": {"train", "training"}, "val": {"val", "valid", "validation"}, "test": {"test", "testing"}}

#: For shards copied from a store: the folder with one copy of each, and the file with a folder's listing in the store.
POOL, LISTING = "pool", ".listing.json"

#: Folders of earlier states of a store are kept this long, because trials of a running sweep can read them.
UNUSED_SECONDS = 7 * 86400.0

LAYOUT = "write shards with an image (key.jpg) and its class as a number (key.cls) for each key"


def shard_paths(folder: Path) -> list[Path]:
    """Return the shards below `folder`, by path."""
    return sorted(path for path in folder.rglob(f"*{SUFFIX}") if path.is_file()) if folder.is_dir() else []


def shards_by_split(root: Path, paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Return split → shards, according to the words in their paths below `root`.

    If no path names a split, all are `train`. Only whole words count: `retrieval-train-0001.tar` contains `val`, but is
    training data.

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
    by_split: dict[str, list[Path]] = {}
    for path, (split,) in named.items():
        by_split.setdefault(split, []).append(path)
    if "train" not in by_split:
        raise DataSetUnavailableError(root, f"has shards of {' and '.join(by_split)}, and none of train", LAYOUT)
    return {split: by_split[split] for split in SPLIT_WORDS if split in by_split}


def indexed_shards(name: str, root: Path, paths: Sequence[Path]) -> StoredImages:
    """Return the images of shards, in the order of the shards and their members; indexed once per node.

    Args:
        name: name of the data set, for the folder that keeps the index.
        root: folder of the shards.
        paths: paths of the shards below `root`.

    Raises:
        DataSetUnavailableError: a shard is truncated, has no images, or has one without a class.
    """
    return StoredImages(root, prepared_arrays(name, paths, "shards 1", lambda: _index(root, paths)))


def _index(root: Path, paths: Sequence[Path]) -> dict[str, NDArray[np.generic]]:
    images = [(number, *image) for number, path in enumerate(paths) for image in _members(path)]
    names = [path.relative_to(root).as_posix() for path in paths]
    return arrays_of(names, *zip(*images, strict=True)) | _origin(root, names)


def _origin(root: Path, names: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    """Return a digest of the store's listing of copied shards, empty for shards that were not copied."""
    # part of the fingerprint: a shard whose images keep their sizes has the same index after a change
    try:
        listing = json.loads((root / LISTING).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return {"origin": np.frombuffer(_digest([[name, listing[name]] for name in names]).encode(), np.uint8)}


def _members(path: Path) -> list[tuple[int, int, int]]:
    """Return the offset, size and class of each image in a shard."""
    images: dict[str, tuple[int, int]] = {}
    targets: dict[str, int] = {}
    readable = refused(path, "cannot be read as a tar archive", "fetch it again", tarfile.TarError, OSError, EOFError)
    # "r:" accepts no compression, because a compressed image has no offset
    with readable, tarfile.open(path, "r:") as archive:
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
                label = _class_of(kind, content.read())
                if label is not None:
                    targets[key] = label
    unknown = next((key for key in images if key not in targets), None)
    if unknown is not None or not images:
        rule = "holds no images" if unknown is None else f"has no class for {unknown!r}"
        raise DataSetUnavailableError(path, rule, LAYOUT)
    return [(*place, targets[key]) for key, place in images.items()]


def _class_of(kind: str, content: bytes) -> int | None:
    """Return the class in a `.cls` member, or under `label` in a `.json` member; `None` if there is none."""
    try:
        value = json.loads(content)
    except ValueError:
        return None
    if kind == "json":
        value = value.get("label") if isinstance(value, dict) else None
    # `true` is an int in Python, but no class
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def local_folder(folder: str) -> Path:
    """Return the path of a folder; for an object store, the path of its `local_copy`."""
    return local_copy(folder) if "://" in folder else Path(folder).expanduser()


def local_copy(address: str) -> Path:
    """Return the folder on this node's disk with the shards that an object store has now, and no others.

    Every state of the store (names, sizes and tags) has a separate folder. A trial that reads an earlier state is
    therefore not disturbed. A shard is copied once, and folders link to it. Folders unused for `UNUSED_SECONDS` are
    removed when the next one is made.

    Args:
        address: `s3://bucket/folder`, `gs://bucket/folder` or `az://container/folder`.

    Raises:
        DataSetUnavailableError: there are no shards, the store or the disk fails, or a shard changes during the copy.
    """
    try:
        store = Store(address)
        entries = {name: entry for name, entry in store.entries().items() if name.endswith((SUFFIX, ".json", ".txt"))}
    except StoreError as error:
        raise DataSetUnavailableError(address, f"cannot be copied: {error.message}", error.remedy) from error
    if not entries:
        raise DataSetUnavailableError(address, "holds no shards", LAYOUT)
    listing = {name: [entry.size, entry.tag or entry.written] for name, entry in sorted(entries.items())}
    readable = re.sub(r"[^\w.-]+", "_", address.partition("://")[2].partition("?")[0]).strip("_")
    copies = data_folder() / "shards" / f"{readable}-{_digest(store.uri)}"
    folder = copies / _digest(listing)
    with refused(address, "cannot be copied to this node", "check credentials and disk space", OSError), locked(folder):
        if folder.is_dir():
            os.utime(folder)  # counts as a use
        else:
            _copy(store, entries, listing, folder, address)
            _remove_unused(copies)
    return folder


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _copy(
    store: Store, entries: Mapping[str, Entry], listing: Mapping[str, object], folder: Path, address: str
) -> None:
    """Make the folder of a listing with links to shards in the pool. Only shards that the pool lacks are downloaded."""
    pool = folder.parent / POOL
    kept = {name: pool / _digest([name, listing[name]]) for name in entries}
    with temporary_beside(folder) as temporary:
        # all names are checked before anything is downloaded
        places = {name: place_inside(temporary / "copy", name, address) for name in entries}
        arrived = store.download_all({name: path for name, path in kept.items() if not path.exists()})
        for name, entry in arrived.items():
            if entry is None or (entry.size, entry.tag) != (entries[name].size, entries[name].tag):
                kept[name].unlink(missing_ok=True)
                raise DataSetUnavailableError(address, f"changes while it is copied: {name}", "start again afterwards")
        for name, place in places.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(kept[name], place)
        write_text(temporary / "copy" / LISTING, json.dumps(listing))
        (temporary / "copy").rename(folder)  # complete or not at all


def _remove_unused(copies: Path) -> None:
    """Remove folders unused for `UNUSED_SECONDS`, and shards that no folder links to."""
    for folder in copies.iterdir():
        if folder.name != POOL and folder.is_dir() and time.time() - folder.stat().st_mtime > UNUSED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
    for shard in (copies / POOL).iterdir():
        if shard.stat().st_nlink == 1:
            shard.unlink()


def place_inside(folder: Path, name: str, address: str) -> Path:
    """Return the path of an object's copy below `folder`.

    Raises:
        DataSetUnavailableError: the name would lead outside `folder`.

    Example:
        >>> place_inside(Path("copy"), "train/0001.tar", "s3://bucket").as_posix()
        'copy/train/0001.tar'
    """
    # anyone who can write to the store chooses the names in it
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or "\\" in name or not name.isprintable():
        rule = f"holds an object whose name is no path below it: {name!r}"
        raise DataSetUnavailableError(address, rule, "remove it from the store, and find out who put it there")
    return folder / name

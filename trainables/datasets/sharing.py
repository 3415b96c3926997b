"""One copy of a data set per node: arrays on disk, which every process maps. A digest of their contents is their name.

A copy is plain data: arrays, and JSON of numbers and texts. If another user could have written it, its contents are
compared with the digest in its name before it is used.

Mapped pages belong to the operating system's file cache: all processes share them, and they are freed first when memory
is short. A process that changes a value in a page gets its own copy of that page.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.datasets.base import DataSet, Split
from trainables.datasets.cache import DataSetUnavailableError, data_folder, locked, temporary_beside
from trainables.datasets.image_stream import CropAndFlip, ImagePreprocessing
from trainables.files.atomic import read_bytes
from trainables.registry import SPLITS

#: Copies unused for this long are removed when the next one is made. Our choice: sweeps are resumed sooner.
UNUSED_DAYS = 30

_FACTS = "facts.json"
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError)

#: Objects that a data set can contain besides tensors and plain values.
_PARTS = {part.__name__: part for part in (CropAndFlip, ImagePreprocessing)}


def content_key(dataset: DataSet) -> str:
    """Return a digest of the contents of a data set, equal for equal data on every node.

    Example:
        >>> from trainables.datasets import load_dataset
        >>> digits = load_dataset("digits")
        >>> content_key(digits) == content_key(load_dataset("digits")), len(content_key(digits))
        (True, 32)
    """
    digest = hashlib.sha256()
    for name, value in sorted(_leaves(dataset).items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
            digest.update(value.contiguous().numpy().data)
        else:
            digest.update(f"{name} {value!r}\0".encode())
    return digest.hexdigest()[:32]


def shared_dataset(key: str, load: Callable[[], DataSet]) -> DataSet:
    """Return the data set whose `content_key` is `key`, mapped from the node's copy, on the CPU.

    The first process of a node loads the data and writes the copy. If no folder can be written, each process keeps the
    data that it loads.

    Args:
        key: expected `content_key`.
        load: function that loads the data.

    Raises:
        DataSetUnavailableError: as `load`, or the data on this node differ from the data at the start of the sweep.
    """
    folder = data_folder() / "shared" / key

    def checked() -> DataSet:
        dataset = load()
        if content_key(dataset) != key:
            raise DataSetUnavailableError(
                data_folder(), "contains other data than the sweep was started with", "copy the same files"
            )
        return dataset

    return _shared(folder, lambda: _mapped(folder, key), checked, lambda dataset: _write(dataset, folder))


def node_copy(dataset: DataSet) -> DataSet:
    """Write a loaded data set as this node's copy, for later processes, and return it mapped."""
    return shared_dataset(content_key(dataset), lambda: dataset)


def shared_arrays(key: str, compute: Callable[[], dict[str, NDArray[np.generic]]]) -> dict[str, NDArray[np.generic]]:
    """Return arrays computed from other data by the first process of a node, and mapped by all.

    If no folder can be written, or other users could have written the folder, each process computes its own arrays.

    Args:
        key: name of the folder, which identifies the data and the computation.
        compute: function that returns the arrays, called under a lock.
    """
    folder = data_folder() / "shared" / key
    return _shared(folder, lambda: _mapped_arrays(folder), compute, lambda arrays: _publish(folder, arrays, {}))


Held = TypeVar("Held")


def _shared(
    folder: Path, mapped: Callable[[], Held | None], make: Callable[[], Held], write: Callable[[Held], None]
) -> Held:
    """Return the contents of `folder`, which the first process of a node makes and writes."""
    copy = mapped()
    if copy is not None:
        return copy
    with ExitStack() as guard:
        # a folder that cannot be written has no lock either: each process then makes its own
        with contextlib.suppress(DataSetUnavailableError, OSError):
            guard.enter_context(locked(folder))
        # another process can have written it while this one waited
        copy = mapped()
        if copy is not None:
            return copy
        made = make()
        with contextlib.suppress(DataSetUnavailableError, OSError):
            write(made)
    # mapped pages are shared with the other processes; the arrays just made are not
    copy = mapped()
    return made if copy is None else copy


def _mapped_arrays(folder: Path) -> dict[str, NDArray[np.generic]] | None:
    """Return the arrays in a folder by name; `None` if it is missing, damaged, or writable for other users."""
    try:
        if not (folder / _FACTS).is_file() or not _only_ours(folder):
            return None
        arrays = {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in folder.glob("*.npy")}
        os.utime(folder)  # counts as a use: unused copies are removed
    except _UNREADABLE:
        return None
    return arrays


def _leaves(dataset: DataSet) -> dict[str, object]:
    """Return the fields of the data set and of its splits by name, e.g. `train.inputs`."""
    leaves: dict[str, object] = {
        f"{name}.{part.name}": getattr(split, part.name)
        for name, split in dataset.splits.items()
        for part in fields(Split)
        if part.name != ("source" if split.source is None else "inputs")  # a source identifies the inputs that it reads
    }
    own = (field.name for field in fields(dataset) if field.name not in (*SPLITS, "further"))
    return leaves | {name: getattr(dataset, name) for name in own}


def _write(dataset: DataSet, folder: Path) -> None:
    """Write the copy of a data set, unless it contains other objects (e.g. a user's own preprocessing)."""
    leaves = _leaves(dataset)
    facts = {name: _plain(value) for name, value in leaves.items() if not isinstance(value, Tensor)}
    if any(_from_plain(plain) != leaves[name] for name, plain in facts.items()):
        return
    arrays = {name: leaf.contiguous().numpy() for name, leaf in leaves.items() if isinstance(leaf, Tensor)}
    _publish(folder, arrays, facts)


def _publish(folder: Path, arrays: Mapping[str, NDArray[np.generic]], facts: Mapping[str, object]) -> None:
    """Write `folder` atomically, replacing an unreadable one, and remove copies unused for `UNUSED_DAYS`."""
    with temporary_beside(folder) as temporary:
        complete = temporary / "arrays"
        complete.mkdir()
        for name, array in arrays.items():
            np.save(complete / f"{name}.npy", array, allow_pickle=False)
        (complete / _FACTS).write_text(json.dumps(facts))
        for written in (
            complete,
            *complete.iterdir(),
        ):  # for any umask, because files that a group can write are not trusted
            written.chmod(written.stat().st_mode & ~0o022)
        if folder.is_dir():
            folder.rename(temporary / "unreadable")
        complete.rename(folder)
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for other in folder.parent.iterdir():
        if other.is_dir() and other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)


def _plain(value: object) -> object:
    """Return a value in a form for JSON; `_from_plain` does not restore values that JSON cannot represent."""
    if is_dataclass(value) and type(value).__name__ in _PARTS:
        return {"kind": type(value).__name__, **{part.name: getattr(value, part.name) for part in fields(value)}}
    return value if isinstance(value, (str, int, float, tuple, type(None))) else repr(value)


def _from_plain(plain: object) -> Any:
    """Return the value of a form made by `_plain`, from JSON or directly: lists become tuples."""
    if isinstance(plain, dict):
        values = {name: _from_plain(value) for name, value in plain.items()}
        return _PARTS[values.pop("kind")](**values)
    return tuple(map(_from_plain, plain)) if isinstance(plain, (list, tuple)) else plain


def _only_ours(folder: Path) -> bool:
    """Return whether only this user can have written the files of `folder`."""
    # `lstat`: a link's target could belong to anyone
    statuses = [path.lstat() for path in (folder, *folder.iterdir())]
    return all(status.st_uid == os.getuid() and not status.st_mode & 0o022 for status in statuses)


def _mapped(folder: Path, key: str) -> DataSet | None:
    """Return the data set in `folder`; `None` if it is missing, damaged, or not the one that `key` names."""
    if not folder.is_dir():
        return None
    try:
        leaves = {name: _from_plain(plain) for name, plain in json.loads(read_bytes(folder / _FACTS)).items()}
        for file in folder.glob("*.npy"):
            # Copy on write: the tensors can be changed like any others, the file cannot.
            leaves[file.stem] = torch.from_numpy(np.load(file, mmap_mode="c", allow_pickle=False))
        names = dict.fromkeys(leaf.partition(".")[0] for leaf in leaves if "." in leaf)
        splits = {
            name: Split(
                **{part.name: leaves.pop(f"{name}.{part.name}") for part in fields(Split) if part.name != "source"}
            )
            for name in names
        }
        parts: dict[str, Any] = {name: splits.pop(name) for name in SPLITS}
        dataset = DataSet(**parts, further=splits, **leaves)
        # the digest reads all pages: it is computed only if another user could have changed them
        if not _only_ours(folder) and content_key(dataset) != key:
            return None
    except _UNREADABLE:
        return None
    with contextlib.suppress(OSError):
        os.utime(folder)
    return dataset

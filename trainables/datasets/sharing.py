"""One copy of a data set a node: arrays on disk, named after their contents, that every process maps.

A copy is plain data: arrays, and JSON of numbers and texts. One that another user could have written is compared with
its name, which is a digest of its contents, before it is used.

Mapped pages are the operating system's cache of the files: any number of processes hold them once, and they go
first when memory is short. A process that changes an entry gets a copy of that page alone.
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
from trainables.files.regular import read_bytes
from trainables.registry import SPLITS

#: After this long without use a copy is removed when the next one is made. Our choice: a sweep is resumed sooner.
UNUSED_DAYS = 30

_FACTS = "facts.json"
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError)

#: What a data set may carry besides tensors and plain values.
_PARTS = {part.__name__: part for part in (CropAndFlip, ImagePreprocessing)}


def content_key(dataset: DataSet) -> str:
    """Return a name for everything that a data set holds: equal data have equal names, on every node."""
    digest = hashlib.sha256()
    for name, value in sorted(_leaves(dataset).items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
            digest.update(value.contiguous().numpy().data)
        else:
            digest.update(f"{name} {value!r}\0".encode())
    return digest.hexdigest()[:32]


def shared_dataset(key: str, load: Callable[[], DataSet]) -> DataSet:
    """Return the data set whose `content_key` is `key`, mapped from the node's one copy, on the CPU.

    The first process of a node loads the data and writes the copy; where no folder can be written, each process
    keeps what it loads.

    Args:
        key: what the data must be.
        load: reads them.

    Raises:
        DataSetUnavailableError: as `load`; or this node's data are not those that the sweep was started with.
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
    """Return a loaded data set as this node's one copy, which is written for the processes to come."""
    return shared_dataset(content_key(dataset), lambda: dataset)


def shared_arrays(key: str, compute: Callable[[], dict[str, NDArray[np.generic]]]) -> dict[str, NDArray[np.generic]]:
    """Return arrays that follow from other data, computed by the first process of a node and mapped by all.

    Where no folder can be written, or others could have written it, each process computes its own.

    Args:
        key: names what they are computed from, and how; a folder's name.
        compute: returns them, called under a lock.
    """
    folder = data_folder() / "shared" / key
    return _shared(folder, lambda: _mapped_arrays(folder), compute, lambda arrays: _publish(folder, arrays, {}))


Held = TypeVar("Held")


def _shared(
    folder: Path, mapped: Callable[[], Held | None], make: Callable[[], Held], write: Callable[[Held], None]
) -> Held:
    """Return what `folder` holds, made and written by the first process of a node; what was made if it is no use."""
    found = mapped()
    if found is not None:
        return found
    with ExitStack() as guard:
        with contextlib.suppress(DataSetUnavailableError, OSError):
            guard.enter_context(locked(folder))
        found = mapped()
        if found is not None:
            return found
        made = make()
        with contextlib.suppress(DataSetUnavailableError, OSError):
            write(made)
    found = mapped()
    return made if found is None else found


def _mapped_arrays(folder: Path) -> dict[str, NDArray[np.generic]] | None:
    """Return a folder's arrays by name; `None` where it is missing or damaged, or others could have written it."""
    try:
        if not (folder / _FACTS).is_file() or not _only_ours(folder):
            return None
        found = {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in folder.glob("*.npy")}
        os.utime(folder)
    except _UNREADABLE:
        return None
    return found


def _leaves(dataset: DataSet) -> dict[str, object]:
    """Return every field of the data set and of its splits by name, e.g. `train.inputs`."""
    found: dict[str, object] = {
        f"{name}.{part.name}": getattr(split, part.name)
        for name, split in dataset.splits.items()
        for part in fields(Split)
        if part.name != ("source" if split.source is None else "inputs")  # what is read is known by its source
    }
    own = (field.name for field in fields(dataset) if field.name not in (*SPLITS, "further"))
    return found | {name: getattr(dataset, name) for name in own}


def _write(dataset: DataSet, folder: Path) -> None:
    """Write a data set's copy.

    Data that carry something else than plain values (a preprocessing of a user's own) are not shared.
    """
    leaves = _leaves(dataset)
    facts = {name: _plain(value) for name, value in leaves.items() if not isinstance(value, Tensor)}
    if any(_from_plain(told) != leaves[name] for name, told in facts.items()):
        return
    arrays = {name: each.contiguous().numpy() for name, each in leaves.items() if isinstance(each, Tensor)}
    _publish(folder, arrays, facts)


def _publish(folder: Path, arrays: Mapping[str, NDArray[np.generic]], facts: Mapping[str, object]) -> None:
    """Write `folder` in one step, replacing one that cannot be read, and remove copies long unused."""
    with temporary_beside(folder) as temporary:
        complete = temporary / "arrays"
        complete.mkdir()
        for name, array in arrays.items():
            np.save(complete / f"{name}.npy", array, allow_pickle=False)
        (complete / _FACTS).write_text(json.dumps(facts))
        for written in (complete, *complete.iterdir()):  # whatever the umask: what a group may write is not trusted
            written.chmod(written.stat().st_mode & ~0o022)
        if folder.is_dir():
            folder.rename(temporary / "unreadable")
        complete.rename(folder)
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for other in folder.parent.iterdir():
        if other.is_dir() and other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)


def _plain(value: object) -> object:
    """Return a value as JSON has it; what JSON has no form for comes back as something else from `_from_plain`."""
    if is_dataclass(value) and type(value).__name__ in _PARTS:
        return {"kind": type(value).__name__, **{part.name: getattr(value, part.name) for part in fields(value)}}
    return value if isinstance(value, (str, int, float, tuple, type(None))) else repr(value)


def _from_plain(told: object) -> Any:
    """Return the value that `_plain` told, from JSON or directly: lists are tuples."""
    if isinstance(told, dict):
        values = {name: _from_plain(value) for name, value in told.items()}
        return _PARTS[values.pop("kind")](**values)
    return tuple(map(_from_plain, told)) if isinstance(told, (list, tuple)) else told


def _only_ours(folder: Path) -> bool:
    """Return whether nobody but this user can have written the files of `folder`."""
    found = [path.lstat() for path in (folder, *folder.iterdir())]
    return all(each.st_uid == os.getuid() and not each.st_mode & 0o022 for each in found)


def _mapped(folder: Path, key: str) -> DataSet | None:
    """Return the data set that `folder` holds; `None` where it is missing, damaged, or not what `key` names."""
    if not folder.is_dir():
        return None
    try:
        leaves = {name: _from_plain(told) for name, told in json.loads(read_bytes(folder / _FACTS)).items()}
        for file in folder.glob("*.npy"):
            # Copy on write: the tensors can be written to, as others can, but never the file.
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
        if not _only_ours(folder) and content_key(dataset) != key:
            return None
    except _UNREADABLE:
        return None
    with contextlib.suppress(OSError):
        os.utime(folder)
    return dataset

"""One copy of a data set a node: arrays on disk, named after their contents, that every process maps.

Mapped pages are the operating system's cache of the files: any number of processes hold them once, and they go
first when memory is short. A process that changes an entry gets a copy of that page alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainables.datasets.base import DataSet, Split
from trainables.datasets.cache import data_folder, locked, temporary_beside
from trainables.datasets.errors import DataSetUnavailableError
from trainables.registry import SPLITS

UNUSED_DAYS = 30
"""After this long without use a copy is removed when the next one is made. Our choice: a sweep is resumed sooner."""

_FACTS = "facts.pickle"
_UNREADABLE = (OSError, ValueError, EOFError, KeyError, AttributeError, ImportError, pickle.UnpicklingError)


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
    found = _mapped(folder)
    if found is not None:
        return found
    with ExitStack() as guard:
        with contextlib.suppress(DataSetUnavailableError, OSError):
            guard.enter_context(locked(folder))
        found = _mapped(folder)
        if found is not None:
            return found
        dataset = load()
        if content_key(dataset) != key:
            raise DataSetUnavailableError(
                data_folder(), "contains other data than the sweep was started with", "copy the same files"
            )
        with contextlib.suppress(DataSetUnavailableError, OSError):
            _write(dataset, folder)
    return _mapped(folder) or dataset


def node_copy(dataset: DataSet) -> DataSet:
    """Return a loaded data set as this node's one copy, which is written for the processes to come."""
    return shared_dataset(content_key(dataset), lambda: dataset)


def _leaves(dataset: DataSet) -> dict[str, Any]:
    """Return every field of the data set and of its splits by name, e.g. `train.inputs`."""
    found: dict[str, Any] = {
        f"{name}.{part.name}": getattr(split, part.name)
        for name, split in dataset.splits.items()
        for part in fields(Split)
    }
    own = (field.name for field in fields(dataset) if field.name not in (*SPLITS, "further"))
    return found | {name: getattr(dataset, name) for name in own}


def _write(dataset: DataSet, folder: Path) -> None:
    """Write `folder` in one step, replacing one that cannot be read, and remove copies long unused."""
    leaves = _leaves(dataset)
    with temporary_beside(folder) as temporary:
        complete = temporary / "arrays"
        complete.mkdir()
        for name, tensor in leaves.items():
            if isinstance(tensor, Tensor):
                np.save(complete / f"{name}.npy", tensor.contiguous().numpy(), allow_pickle=False)
        facts = {name: value for name, value in leaves.items() if not isinstance(value, Tensor)}
        (complete / _FACTS).write_bytes(pickle.dumps(facts))
        if folder.is_dir():
            folder.rename(temporary / "unreadable")
        complete.rename(folder)
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for other in folder.parent.iterdir():
        if other.is_dir() and other.stat().st_mtime < oldest:
            shutil.rmtree(other, ignore_errors=True)


def _mapped(folder: Path) -> DataSet | None:
    """Return the data set that `folder` holds; `None` where it is missing or damaged."""
    if not folder.is_dir():
        return None
    try:
        leaves = pickle.loads((folder / _FACTS).read_bytes())
        for file in folder.glob("*.npy"):
            # Copy on write: the tensors can be written to, as others can, but never the file.
            leaves[file.stem] = torch.from_numpy(np.load(file, mmap_mode="c", allow_pickle=False))
        names = dict.fromkeys(leaf.partition(".")[0] for leaf in leaves if "." in leaf)
        splits = {
            name: Split(**{part.name: leaves.pop(f"{name}.{part.name}") for part in fields(Split)}) for name in names
        }
        parts: dict[str, Any] = {name: splits.pop(name) for name in SPLITS}
        dataset = DataSet(**parts, further=splits, **leaves)
    except (*_UNREADABLE, TypeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(folder)
    return dataset

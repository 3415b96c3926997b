"""One copy of a data set per node, which every process maps. A digest of its contents is its name.

If another user could have written a copy, its contents are compared with the digest in its name before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields, replace

from torch import Tensor

from trainables.datasets.base import DataSet, Split
from trainables.datasets.cache import DataSetUnavailableError, data_folder, kept
from trainables.datasets.image_stream import CropAndFlip, ImagePreprocessing
from trainables.registry import SPLITS

#: Classes of the objects that a copy can contain besides tensors and plain values.
_PARTS = (CropAndFlip, ImagePreprocessing)


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
    """Return the data set whose `content_key` is `key`, mapped from the node's copy (see `kept`), on the CPU.

    Args:
        key: expected `content_key`.
        load: function that loads the data.

    Raises:
        DataSetUnavailableError: as `load`, or the data on this node differ from the data at the start of the sweep.
    """

    def sound(dataset: DataSet) -> bool:
        return content_key(dataset) == key

    def checked() -> DataSet:
        if not sound(dataset := load()):
            raise DataSetUnavailableError(
                data_folder(), "contains other data than the sweep was started with", "copy the same files"
            )
        # only exports use the transform, and they load the data themselves
        return dataset if dataset.transform is None else replace(dataset, transform=None)

    return kept(key, checked, classes=(DataSet, Split, *_PARTS), writable=_is_plain, sound=sound)


def _is_plain(dataset: DataSet) -> bool:
    """Return whether a data set has neither objects of a user's own classes nor inputs that stay in files."""
    splits = dataset.splits.values()
    parts = [part for split in splits for part in (split.preprocessing, split.augmentation) if part is not None]
    streamed = any(split.source is not None for split in splits)
    return type(dataset) is DataSet and not streamed and all(type(part) in _PARTS for part in parts)


def node_copy(dataset: DataSet) -> DataSet:
    """Write a loaded data set as this node's copy, for later processes, and return it mapped."""
    return shared_dataset(content_key(dataset), lambda: dataset)


def _leaves(dataset: DataSet) -> dict[str, object]:
    """Return the fields of the data set and of its splits by name, e.g. `train.inputs`."""
    leaves: dict[str, object] = {
        f"{name}.{part.name}": getattr(split, part.name)
        for name, split in dataset.splits.items()
        for part in fields(Split)
        if part.name != ("source" if split.source is None else "inputs")  # a source identifies the inputs that it reads
    }
    own = (field.name for field in fields(dataset) if field.name not in (*SPLITS, "further", "transform"))
    return leaves | {name: getattr(dataset, name) for name in own}

"""Where the bytes of many images are: file, offset and length of each, in arrays that the processes of a node share."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.errors import DataSetUnavailableError

OPEN_FILES = 64
"""Files that a process keeps open; a system's usual limit is 1,024, ImageNet has as many shards."""

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class StoredImages:
    """Images in files, of which each is a run of bytes.

    Attributes:
        root: the folder.
        arrays: `names` uint8 [bytes of all files' names], relative to the root, and `ends` int64 [F] of each; of every
            image its `file`, `offset`, `size` and class, `target`, int64 [N] each.
    """

    root: Path
    arrays: Arrays

    def __len__(self) -> int:
        return len(self.arrays["target"])

    @property
    def targets(self) -> NDArray[np.int64]:
        """Classes, int64 [N]."""
        return np.asarray(self.arrays["target"], np.int64)

    def place(self, index: int) -> tuple[Path, int, int]:
        """Return the file of an image, the offset of its first byte and their number."""
        file, offset, size = (int(self.arrays[key][index]) for key in ("file", "offset", "size"))
        ends = self.arrays["ends"]
        name = self.arrays["names"][int(ends[file - 1]) if file else 0 : int(ends[file])]
        return self.root / os.fsdecode(name.tobytes()), offset, size

    def read(self, index: int) -> bytes:
        """Return an image's bytes.

        Raises:
            DataSetUnavailableError: its file is missing, or shorter than when it was indexed.
        """
        path, offset, size = self.place(index)
        try:
            found = os.pread(_opened(str(path), os.getpid()).fileno(), size, offset)
        except OSError as error:
            raise DataSetUnavailableError(path, f"cannot be read ({error})", "restore the file") from error
        if len(found) != size:
            rule = f"has {len(found)} of the {size} bytes of an image at {offset}"
            raise DataSetUnavailableError(path, rule, "the file was changed after it was indexed: start again")
        return found

    def fingerprint(self) -> str:
        """Return a digest of the files' names and of every image's place, size and class; no pixel is read."""
        digest = hashlib.sha256()
        for key in sorted(self.arrays):
            digest.update(f"{key} {len(self.arrays[key])}\0".encode())
            digest.update(np.ascontiguousarray(self.arrays[key]).data)
        return digest.hexdigest()


def arrays_of(
    names: Sequence[str], file: Sequence[int], offset: Sequence[int], size: Sequence[int], target: Sequence[int]
) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of `StoredImages`."""
    encoded = [os.fsencode(name) for name in names]
    numbers = {"file": file, "offset": offset, "size": size, "target": target}
    return {
        "names": np.frombuffer(b"".join(encoded), np.uint8),
        "ends": np.cumsum([len(name) for name in encoded], dtype=np.int64),
        **{key: np.asarray(values, np.int64) for key, values in numbers.items()},
    }


class _File:
    """A file that stays open; its descriptor is closed with it."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._descriptor

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


@functools.lru_cache(maxsize=OPEN_FILES)
def _opened(path: str, process: int) -> _File:
    """Return an open file; a forked process opens its own."""
    return _File(path)

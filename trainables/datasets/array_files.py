"""Named arrays in NumPy and HDF5 files and folders of them, and the one way in which damaged files are refused.

A file's arrays are listed with their shapes before any is loaded, so a caller loads only those that it uses. Nothing
outside the file is read: pickled objects, which are programs, and HDF5's links, external storage and virtual data sets
are refused.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.cache import DataSetUnavailableError

NUMPY, HDF5 = (".npz", ".npy"), (".h5", ".hdf5")

#: Endings of files of named arrays.
ARRAYS = (*NUMPY, *HDF5)

WRITE = "write arrays of numbers or texts with numpy.savez or h5py"


@contextlib.contextmanager
def reading(path: object, remedy: str) -> Iterator[None]:
    """Convert every error of a library that reads `path` to a DataSetUnavailableError.

    Raises:
        DataSetUnavailableError: the library failed.
    """
    try:
        yield
    except DataSetUnavailableError:
        raise
    # Damaged files raise a dozen types: zipfile.BadZipFile, zlib.error, RuntimeError (encrypted), tokenize.TokenError …
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataSetUnavailableError(path, f"cannot be read ({words})", remedy) from error


@dataclass(frozen=True)
class StoredArray:
    """An array in a file.

    Attributes:
        path: file.
        name: name in the file; groups are separated by `/`.
        shape, dtype: of the array; `dtype` is `object` for texts of HDF5 files.
        read: function that reads the values.
        fault: why the values cannot be read; empty if they can.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], NDArray[np.generic]]
    fault: str = ""

    def load(self) -> NDArray[np.generic]:
        """Return the values, texts of bytes as UTF-8.

        Raises:
            DataSetUnavailableError: they are damaged, stand in another file, or do not fit into memory.
        """
        size = self.dtype.itemsize * int(np.prod(self.shape, dtype=np.float64))
        fault = self.fault
        if not fault and size > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            fault = f"has {size / 2**30:,.0f} GiB, and this machine {memory / 2**30:,.0f} GiB of memory"
        if fault:
            raise DataSetUnavailableError(self.path, f"the array {self.name!r} {fault}", WRITE)
        with reading(self.path, WRITE):
            values = self.read()
            if values.dtype.kind == "S":
                return np.array([text.decode() for text in values.ravel().tolist()]).reshape(values.shape)
            return values


def stored_arrays(path: Path) -> list[StoredArray]:
    """List the arrays in a file, or in the files of a folder, without loading them.

    The array of an `.npy` file has the file's name without its ending. An array in a file of a folder has the name of
    the file before its own: `val_logits` for `logits` in `val.npz`.

    Raises:
        DataSetUnavailableError: a file is missing, damaged or has two arrays of one name.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> np.savez(folder / "val.npz", logits=np.zeros((5, 3)), labels=np.arange(5) % 3)
        >>> [(array.name, array.shape) for array in stored_arrays(folder)]
        [('val_logits', (5, 3)), ('val_labels', (5,))]
    """
    if path.is_dir():
        arrays = []
        for file in sorted(file for file in path.iterdir() if not file.name.startswith(".")):
            if file.suffix in ARRAYS and file.is_file():
                own = stored_arrays(file)
                arrays += (
                    own if file.suffix == ".npy" else [replace(one, name=f"{file.stem}_{one.name}") for one in own]
                )
            else:
                arrays.append(_unreadable(file, file.name, "is no file of arrays"))
    else:
        if not path.is_file():
            raise DataSetUnavailableError(path, "there is no such file", "check the path")
        listers = {".npz": _in_zip, ".npy": _in_npy} | dict.fromkeys(HDF5, _in_hdf5)
        if path.suffix not in listers:
            raise DataSetUnavailableError(path, "is no file of arrays", f"give {', '.join(ARRAYS)}")
        with reading(path, WRITE):
            arrays = listers[path.suffix](path)
    if doubled := [name for name, count in Counter(array.name for array in arrays).items() if count > 1]:
        rule = f"has several arrays called {', '.join(map(repr, doubled[:5]))}"
        raise DataSetUnavailableError(path, rule, "give each array its own name")
    return arrays


def _unreadable(path: Path, name: str, fault: str) -> StoredArray:
    return StoredArray(path, name, (), np.dtype(object), lambda: np.empty(0), fault)


def _in_npy(path: Path) -> list[StoredArray]:
    with path.open("rb") as file:
        return [_stored(path, path.stem, file, path.stat().st_size, partial(np.load, path, allow_pickle=False))]


def _in_zip(path: Path) -> list[StoredArray]:
    """List the arrays of a zip archive; a damaged one has its fault, since it may not be needed."""

    def member(name: str) -> NDArray[np.generic]:
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            array: NDArray[np.generic] = np.lib.format.read_array(file, allow_pickle=False)
            file.read()  # to the end, where the checksum is compared
            return array

    arrays = []
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            read, name = partial(member, entry.filename), entry.filename.removesuffix(".npy")
            try:
                with reading(path, WRITE), archive.open(entry) as file:
                    arrays.append(_stored(path, name, file, entry.file_size, read))
            except DataSetUnavailableError as error:
                arrays.append(_unreadable(path, name, error.rule))
    return arrays


def _stored(path: Path, name: str, file: IO[bytes], size: int, read: Callable[[], NDArray[np.generic]]) -> StoredArray:
    """Return the array whose header begins `file`, which has `size` bytes."""
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)
    if version not in headers:
        raise ValueError(f"version {version} of .npy")
    shape, _, dtype = headers[version](file)
    needed, fault = int(np.prod([dtype.itemsize, *shape], dtype=object)), ""
    if dtype.hasobject:
        fault = "holds pickled objects, which are programs"
    elif needed > size:  # a damaged header could ask for all memory
        fault = f"is damaged: {list(shape)} of {dtype} are {needed:,} bytes, and there are {size:,}"
    return StoredArray(path, name, shape, dtype, read, fault)


def _in_hdf5(path: Path) -> list[StoredArray]:
    try:
        import h5py
    except ImportError as error:
        raise DataSetUnavailableError(path, "needs h5py", "pip install 'calibration-sweeper[hdf5]'") from error

    def values(name: str) -> NDArray[np.generic]:
        with h5py.File(path, "r") as file:
            dataset = file[name]
            texts = h5py.check_string_dtype(dataset.dtype) is not None
            return np.asarray(dataset.asstr("utf-8")[()] if texts else dataset[()])

    arrays = list[StoredArray]()
    with h5py.File(path, "r") as file:

        def add(name: str, link: object) -> None:  # called once for each link; a cycle ends
            dataset = file[name] if isinstance(link, h5py.HardLink) else None
            if isinstance(dataset, h5py.Dataset):
                shape, fault = dataset.shape, ""
                if dataset.external or dataset.is_virtual:
                    fault = "stands in other files"
                elif dataset.dtype.hasobject and h5py.check_string_dtype(dataset.dtype) is None:
                    fault = "holds neither numbers nor texts"
                elif shape is None or (dataset.size and not dataset.id.get_storage_size()):
                    fault = "has no values"
                arrays.append(StoredArray(path, name, shape or (), dataset.dtype, partial(values, name), fault))
            elif dataset is None:
                arrays.append(_unreadable(path, name, "is a link"))

        file.visititems_links(add)
    return arrays

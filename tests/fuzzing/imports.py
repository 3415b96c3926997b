"""Files of predictions as people and disks make them, and what must hold of every import.

Each array or column that a file brings is used, named as unused, or a reason to refuse the file.
"""

import contextlib
import os
import random
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from sweeper.core.errors import SweeperError
from sweeper.execution.predictions_file import read_predictions
from tests.fuzzing.damage import behead, cut, flip, insert, overwrite, repeat

READ, REFUSED = "read", "refused"

Arrays = dict[str, Any]
Change = Callable[[Arrays, random.Random], None]

SCORES = ("logits", "logit", "probs", "prob", "preds", "scores", "predictions", "y_pred", "Logits", "outputs", "p")
LABELS = ("labels", "label", "target", "targets", "y", "y_true", "true_label", "Label")
ODD = (
    "", " ", "id", "run", "größe", "Ünïcode", "a b", "lr", "config_lr", "Learning Rate", "split", "seed", "sample",
    "epoch", "weights", "sample_weight", "features", "names", "label_smoothing", "../x", "logits_0", "logits_1", "pred",
    "correct", "\u202e", "x" * 300, "prob_1", "val_logits", "valid_labels", "Unnamed: 0", "index", "loss", "p", "y",
)  # fmt: skip


def odd_values(rows: int, chance: random.Random) -> Any:
    """Return an array that belongs to nothing, or to the samples."""
    kind = chance.randrange(13)
    if kind == 0:
        return np.arange(rows)
    if kind == 1:
        return np.full(rows, chance.choice(["a", "b", "val", "test"]))
    if kind == 2:
        return np.array([chance.choice(["val", "test"]) for _ in range(rows)])
    if kind == 3:
        return np.random.default_rng(chance.randrange(99)).normal(size=(rows, chance.choice([1, 2, 3])))
    if kind == 4:
        return np.float64(chance.random())
    if kind == 5:
        return np.array([chance.randrange(2) for _ in range(rows)])
    if kind == 6:
        return np.arange(rows).astype("datetime64[D]")
    if kind == 7:
        return np.array([b"x", b"\xff"] * rows)[:rows]
    if kind == 8:
        return (
            np.random.default_rng(chance.randrange(99)).random(rows).astype(chance.choice(["f2", "f4", ">f8", "f16"]))
        )
    if kind == 9:
        return np.full(rows, np.nan)
    if kind == 10:
        return np.zeros((rows, 2, 2))
    if kind == 11:
        return np.arange(rows).astype(complex)
    return np.array([chance.random() < 0.5 for _ in range(rows)])


def add(arrays: Arrays, chance: random.Random) -> None:
    """Bring one more array."""
    rows = max((np.shape(array)[:1] or (1,))[0] for array in arrays.values()) if arrays else 5
    name = chance.choice(chance.choice((ODD, SCORES, LABELS)))
    arrays.setdefault(name, odd_values(rows + chance.choice([0, 0, 0, 1]), chance))


def two_seeds(arrays: Arrays, chance: random.Random) -> None:
    """Write two seeds one after the other, with or without saying so."""
    rows = {name: len(array) for name, array in arrays.items() if np.ndim(array)}
    for name in rows:
        again = np.array(arrays[name])
        if again.dtype.kind == "f" and again.ndim == 2:
            again = again[::-1] if chance.random() < 0.2 else again
        arrays[name] = np.concatenate([arrays[name], again])
    size = max(rows.values(), default=0)
    if chance.random() < 0.7:
        arrays["seed"] = np.repeat([0, 1], size)


def other_type(arrays: Arrays, chance: random.Random) -> None:
    """Convert one array."""
    name = chance.choice([*arrays])
    kind = chance.choice(["f2", "f4", ">f4", "i1", "i8", "u8", "?", "U8", "S8", "O", "c16", "f16", "m8[s]", "M8[s]"])
    with contextlib.suppress(ValueError, TypeError):
        if np.asarray(arrays[name]).dtype.kind == "f" and kind[-2:-1] in "iu":
            arrays[name] = np.nan_to_num(arrays[name])
        arrays[name] = np.asarray(arrays[name]).astype(kind)


def other_values(arrays: Arrays, chance: random.Random) -> None:
    """Put values in one array that belong to none."""
    name = chance.choice([*arrays])
    array = np.array(arrays[name])
    if array.dtype.kind in "fi" and array.size:
        floats = [np.nan, np.inf, -np.inf, 1e300, -1.0, 0.0, 0.5, 7.0]
        value = chance.choice(floats if array.dtype.kind == "f" else [-1, 0, 7, 99])
        with np.errstate(over="ignore"):
            array.reshape(-1)[:: chance.choice([1, 2, array.size])] = value
        arrays[name] = array


def other_shape(arrays: Arrays, chance: random.Random) -> None:
    """Cut, stack or flatten one array."""
    name = chance.choice([*arrays])
    array = np.asarray(arrays[name])
    changes = [lambda a: a[:0], lambda a: a[:1], lambda a: a[:-1], lambda a: a[..., None], lambda a: a.reshape(-1)]
    changes += [
        lambda a: np.sort(a, axis=0),
        lambda a: a[None],
        lambda a: a[:, :1],
        lambda a: np.full_like(a, a.flat[0]),
    ]
    with contextlib.suppress(IndexError, ValueError, TypeError):
        arrays[name] = chance.choice(changes)(array)


def other_name(arrays: Arrays, chance: random.Random) -> None:
    """Rename one array."""
    name, new = chance.choice([*arrays]), chance.choice(chance.choice((ODD, SCORES, LABELS)))
    if new not in arrays:
        arrays[new] = arrays.pop(name)


def in_splits(arrays: Arrays, chance: random.Random) -> None:
    """Divide every array by split: by name, or with an array of names."""
    rows = max((len(array) for array in arrays.values() if np.ndim(array)), default=0)
    if chance.random() < 0.5:
        arrays["split"] = np.array(["val", "test"] * rows)[:rows]
        return
    names = chance.choice([("val", "test"), ("valid", "test"), ("train", "val", "test"), ("test", "ood")])
    for name in [*arrays]:
        array = arrays.pop(name)
        if np.ndim(array):
            for number, split in enumerate(names):
                arrays[f"{split}_{name}" if chance.random() < 0.9 else f"{name}_{split}"] = array[number :: len(names)]


CHANGES: tuple[Change, ...] = (
    add, add, add, two_seeds, other_type, other_values, other_shape, other_name, in_splits,
)  # fmt: skip


def drawn(chance: random.Random) -> Arrays:
    """Return predictions of some samples, changed up to three times."""
    rows, classes = chance.choice([1, 2, 30, 40, 41]), chance.choice([1, 2, 2, 3, 5])
    numbers = np.random.default_rng(chance.randrange(2**31))
    logits, labels = numbers.normal(0, 2, (rows, classes)), numbers.integers(0, classes, rows)
    name = chance.choice(SCORES[:8])
    scores = logits[:, 0] if classes == 1 or chance.random() < 0.2 else logits
    if "prob" in name:
        weights = np.exp(logits)
        scores = 1 / (1 + np.exp(-logits[:, 0])) if classes == 1 else weights / weights.sum(1, keepdims=True)
    arrays = {name: scores, chance.choice(LABELS): labels}
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        chance.choice(CHANGES)(arrays, chance)
    return arrays


def write(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays in the format that the path's ending names; a path without an ending becomes a folder."""
    if path.suffix == ".npz":
        np.savez(path, **{name: array for name, array in arrays.items() if name != "file"})
    elif path.suffix == ".npy":
        np.save(path, next(iter(arrays.values()), np.zeros(0)))
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                array = np.asarray(array)
                file[name] = array.astype(h5py.string_dtype()) if array.dtype.kind == "U" else array
    elif path.suffix:
        table = pa.Table.from_arrays([*map(column, arrays.values())], [*arrays])
        (pq.write_table if path.suffix == ".parquet" else pyarrow.csv.write_csv)(table, path)
    else:
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)


def column(array: Any) -> pa.Array:
    """Return an array as a column, lists if it has more dimensions."""
    array = np.asarray(array)
    return pa.array([*array] if array.ndim == 1 else np.atleast_1d(array).tolist())


def wide(arrays: Mapping[str, Any]) -> Arrays:
    """Return arrays with one column per class, as a CSV has them, from 0 or from 1."""
    result = Arrays()
    for name, array in arrays.items():
        if np.ndim(array) == 2:
            result |= {f"{name}_{number}": array[:, number] for number in range(array.shape[1])}
        else:
            result[name] = array
    return result


def damaged(path: Path, chance: random.Random) -> None:
    """Damage the bytes of a file as disks do, or its structure as people do."""
    data, share = path.read_bytes(), chance.random()
    if path.suffix == ".npz" and chance.random() < 0.4:
        odd_archive(path, chance)
        return
    if path.suffix == ".npy" and chance.random() < 0.5:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d, 3), }" % chance.choice(
            [10**15, 10**9, -5, 2**63]
        )
        odd = chance.choice([header, b"(" * 90, b"{'descr': 'O'}", b"{" + b"[" * 500, b"\x00\xff", b"{'descr': ("])
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(odd).to_bytes(2, "little") + odd + bytes(24))
        return
    changes = [
        partial(flip, bits=[chance.randrange(8 * len(data) or 1) for _ in range(chance.choice([1, 3, 8]))]),
        partial(cut, share=share), partial(behead, share=share), partial(repeat, start=share, end=chance.random()),
        partial(insert, share=share, extra=chance.choice([b"\xff", bytes(64), b'"', b",,,\n", b"\n\n"])),
        partial(overwrite, share=share, extra=chance.choice([bytes(16), b"\xff" * 16, b"PAR1", b"PK\x03\x04"])),
    ]  # fmt: skip
    path.write_bytes(chance.choice(changes)(data))


def odd_archive(path: Path, chance: random.Random) -> None:
    """Make a zip archive that no NumPy would write."""
    kind = chance.randrange(6)
    if kind == 0:  # encrypted, or an unknown compression, by its own word
        data = bytearray(path.read_bytes())
        for mark, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
            for place in [i for i in range(len(data)) if data.startswith(mark, i)]:
                data[place + at + (2 if chance.random() < 0.5 else 0)] |= 1
        path.write_bytes(bytes(data))
        return
    with zipfile.ZipFile(path, "a") as archive:
        if kind == 1:
            archive.writestr(next(iter(archive.namelist()), "logits.npy"), b"twice")
        elif kind == 2:
            archive.writestr("inner.npz", path.read_bytes()[:200])
        elif kind == 3:
            archive.writestr("labels.npy", b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 40)
        elif kind == 4:
            archive.writestr("logits/", b"")
        else:
            archive.writestr("readme.txt", "hello", zipfile.ZIP_LZMA)


def odd_hdf5(path: Path, chance: random.Random, outside: Path) -> None:
    """Let an HDF5 file refer to what is outside of it, or to itself."""
    os.mkfifo(outside / "pipe")
    (outside / "secret").write_bytes(b"secret" * 100)
    with h5py.File(path, "a") as file:
        name = chance.choice(["logits", "labels", "extra", "val/logits"])
        if name in file:
            del file[name]
        kind = chance.randrange(6)
        if kind < 2:
            place = str(outside / ("pipe" if kind else "secret"))
            file.create_dataset(name, (40, 3), "f4", external=[(place, 0, 480)])
        elif kind == 2:
            layout = h5py.VirtualLayout((40, 3), "f4")
            layout[:] = h5py.VirtualSource(str(outside / chance.choice(["pipe", "missing"])), "x", (40, 3))
            file.create_virtual_dataset(name, layout)
        elif kind == 3:
            file[name] = h5py.ExternalLink(str(outside / chance.choice(["pipe", "secret", "missing"])), "/x")
        elif kind == 4:
            file[name] = h5py.SoftLink(chance.choice(["/", f"/{name}", "/nowhere"]))
        else:
            file.require_group("deep")["again"] = file["/"]


FORMATS = ("a.npz", "a.npz", "a.h5", "a.csv", "a.parquet", "a", "a.npy", "a+labels.npz", "a+labels.csv")


#: Errors of NumPy, h5py and Arrow where a format cannot hold an array.
UNWRITABLE = (ValueError, TypeError, OSError, OverflowError, RuntimeError, pa.ArrowException)


class Imports:
    """Makes files in a folder and reads them."""

    def __init__(self, work: Path) -> None:
        """Write below `work`."""
        self._work = work

    def fuzz(self, count: int, seed: int) -> Counter[str]:
        """Check cases and count the answers. Raises as `check`."""
        return Counter(self.check(seed * 1_000_000 + number) for number in range(count))

    def check(self, case: int) -> str:
        """Make the file with number `case` and read it; return whether it was read.

        Raises AssertionError for an array that is neither used nor named, and any error that is no sentence.
        """
        chance = random.Random(case)
        arrays, form = drawn(chance), chance.choice(FORMATS)
        arrays = wide(arrays) if form.endswith(".csv") and chance.random() < 0.8 else arrays
        try:
            paths = self._written(arrays, form)
        except UNWRITABLE:
            return "not written"  # by NumPy, h5py or Arrow: no file can hold such an array
        harm, link = chance.random(), paths[0]
        # libhdf5 2 loops for ever over a damaged heap, where texts are.
        texts = link.suffix == ".h5" and any(np.asarray(array).dtype.kind == "U" for array in arrays.values())
        if harm < 0.3 and link.is_file() and not texts:
            damaged(link, chance)
        elif harm < 0.5 and link.suffix == ".h5":
            odd_hdf5(link, chance, self._work / "outside")
        elif harm < 0.33:
            shutil.rmtree(link) if link.is_dir() else link.unlink()
            chance.choice([os.mkfifo, Path.mkdir, lambda path: path.symlink_to(path.name)])(link)
        else:
            return self._used(arrays, form, paths)
        try:
            read_predictions(*paths)
        except SweeperError:
            return REFUSED
        return READ

    def _written(self, arrays: Arrays, form: str) -> list[Path]:
        shutil.rmtree(self._work, ignore_errors=True)
        (self._work / "outside").mkdir(parents=True)
        name, _, other = form.partition("+")
        if not other and not name.endswith(".npy"):
            write(self._work / name, arrays)
            return [self._work / name]
        labels, rest = divided(arrays, one=name.endswith(".npy"))
        paths = [self._work / (name if name.endswith(".npy") else f"{name}{Path(other).suffix}"), self._work / "b.npz"]
        write(paths[0], rest)
        write(paths[1], labels)
        return paths

    def _used(self, arrays: Arrays, form: str, paths: list[Path]) -> str:
        """Read a sound file, and again with each array changed or left out."""
        before = answer(paths)
        if before is None:
            return REFUSED
        if max(np.size(array) for array in arrays.values()) == 1:
            return READ  # whatever one sample is called, nothing changes
        # An .npy file has no name of its array.
        for name in divided(arrays, one=True)[0] if form == "a.npy" else arrays:
            if f" {name}" in before[1].replace(",", ""):
                continue
            without = {key: array for key, array in arrays.items() if key != name}
            others = [without, {**arrays, name: changed(arrays[name])}]
            assert any(self._differs(other, form, before[0]) for other in others), f"{name} of {form}, {[*arrays]}"
        return READ

    def _differs(self, arrays: Arrays, form: str, before: bytes) -> bool:
        try:
            after = answer(self._written(arrays, form))
        except UNWRITABLE:
            return True
        return after is None or after[0] != before


def divided(arrays: Arrays, *, one: bool) -> tuple[Arrays, Arrays]:
    """Return the arrays of a file of labels and those of the other file, which can hold only `one`."""
    labels = {key: array for key, array in arrays.items() if "label" in key.lower()} or dict([*arrays.items()][1:])
    rest = {key: array for key, array in arrays.items() if key not in labels}
    kept = [*rest][: 1 if one else None]
    return {key: array for key, array in arrays.items() if key not in kept}, {key: rest[key] for key in kept}


def changed(array: Any) -> Any:
    """Return other values of the same type and shape."""
    array = np.asarray(array)
    if array.dtype.kind in "fiu" and array.dtype.itemsize > 1:
        return (array.astype(np.float64)[::-1] + 1 if array.ndim else array + 1).astype(array.dtype)
    return array[::-1] if array.ndim else np.asarray("other")


def answer(paths: list[Path]) -> tuple[bytes, str] | None:
    """Return everything that was read, and the notes; `None` if the file was refused."""
    try:
        read = read_predictions(*paths)
    except SweeperError:
        return None
    rows = [(place, {name: own.tolist() for name, own in by.items()}) for place, by in read.rows.items()]
    values = (read.configurations, read.seeds, read.epochs, read.splits, rows, read.targets.tolist())
    return repr((values, read.logits.tolist(), np.ravel(getattr(read, "weights", None)))).encode(), " ".join(read.notes)

"""The user's own arrays, in `.npz` or Parquet."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.base import DATASETS, DataSet, Fraction, Indices, divided, stratified_split
from trainables.datasets.cache import DataSetUnavailableError
from trainables.registry import SPLITS

SPLIT_SEED = 42
NPZ_REMEDY = "write it with numpy.savez(path, inputs=…, targets=…[, split=…])"
PARQUET_REMEDY = "write the columns inputs (list of numbers), target (whole number) and, if wanted, split (text)"


def read_npz(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read `inputs`, `targets` and, where present, `split` (texts train, val, test) without unpickling.

    Raises:
        DataSetUnavailableError: the file is truncated, broken, holds pickled objects, or lacks an array.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key in ("inputs", "targets", "split")}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise DataSetUnavailableError(path, f"cannot be read as .npz ({error})", NPZ_REMEDY) from error
    missing = [key for key in ("inputs", "targets") if key not in arrays]
    if missing:
        raise DataSetUnavailableError(path, f"lacks the array {' and '.join(missing)}", NPZ_REMEDY)
    return arrays


def read_parquet(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read the columns `inputs`, `target` and, where present, `split`.

    Raises:
        DataSetUnavailableError: the file is truncated, broken, lacks a column, or rows differ in length.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise DataSetUnavailableError(path, f"cannot be read as Parquet ({error})", PARQUET_REMEDY) from error
    missing = [name for name in ("inputs", "target") if name not in table.column_names]
    if missing:
        raise DataSetUnavailableError(path, f"lacks the column {' and '.join(missing)}", PARQUET_REMEDY)
    try:
        inputs = np.array(table.column("inputs").to_pylist(), np.float32)
        targets = table.column("target").to_numpy()
    except (ValueError, TypeError) as error:
        raise DataSetUnavailableError(path, f"inputs are not rows of equal length ({error})", PARQUET_REMEDY) from error
    arrays = {"inputs": inputs, "targets": targets}
    if "split" in table.column_names:
        arrays["split"] = np.array(table.column("split").to_pylist())
    return arrays


def splits_of(
    path: Path, targets: NDArray[np.generic], given: NDArray[np.generic] | None, fractions: tuple[float, float]
) -> list[Indices]:
    """Return training, validation and test indices: those `given`, else a stratified draw.

    Raises:
        DataSetUnavailableError: a given split name is unknown or a split is empty.
    """
    if given is None:
        return stratified_split(targets, fractions, SPLIT_SEED)
    unknown = sorted(set(given.tolist()) - set(SPLITS))
    if unknown or len(given) != len(targets):
        raise DataSetUnavailableError(
            path, f"has unknown splits {unknown} or not one split per sample", "use train, val and test"
        )
    parts = [np.flatnonzero(given == name).astype(np.int64) for name in SPLITS]
    for name, part in zip(SPLITS, parts, strict=True):
        if not len(part):
            raise DataSetUnavailableError(path, f"has no samples in split {name}", "give every split some samples")
    return parts


@DATASETS.add("arrays", stand_in={"channels": 1, "size": 8, "classes": 10})
def load_arrays(
    path: str, standardise: bool = True, validation_fraction: Fraction = 0.1, test_fraction: Fraction = 0.2
) -> DataSet:
    """Your own arrays in .npz or Parquet.

    Load arrays: inputs [N, ...] of numbers and targets [N], classes 0 to K-1.

    Args:
        path: an `.npz` file with arrays `inputs`, `targets` and optionally `split`; or a Parquet file with columns
            `inputs` (a list of numbers a row), `target` and optionally `split` (`train`, `val` or `test`).
        standardise: subtract each input's training mean and divide by its training standard deviation [our
            choice].
        validation_fraction: share for validation, of each class, where the file gives no split.
        test_fraction: share for testing, of each class, where the file gives no split.

    Raises:
        DataSetUnavailableError: the file is missing, broken or inconsistent.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataSetUnavailableError(file, "the file is missing", "check the data set's path")
    arrays = read_parquet(file) if file.suffix == ".parquet" else read_npz(file)
    inputs, targets = _checked(file, arrays["inputs"], arrays["targets"])
    parts = splits_of(file, targets, arrays.get("split"), (validation_fraction, test_fraction))
    if standardise:
        mean = inputs[parts[0]].mean(0, dtype=np.float64)
        std = inputs[parts[0]].std(0, dtype=np.float64)
        inputs = ((inputs - mean) / np.where(std > 0, std, 1)).astype(np.float32)
    return divided("arrays", inputs, targets, parts, int(targets.max()) + 1)


def _checked(
    path: Path, inputs: NDArray[np.generic], targets: NDArray[np.generic]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rule = None
    if inputs.ndim < 2 or len(inputs) != len(targets) or targets.ndim != 1:
        rule = f"has inputs {inputs.shape} and targets {targets.shape}, not [N, ...] and [N]"
    elif not np.issubdtype(inputs.dtype, np.number) or not np.isfinite(inputs).all():
        rule = "has inputs that are not finite numbers"
    elif not np.issubdtype(targets.dtype, np.integer):
        rule = f"has targets of type {targets.dtype}, not whole numbers"
    elif sorted(set(targets.tolist())) != list(range(int(targets.max()) + 1)):
        rule = "has targets that are not the classes 0, 1, 2, … without gaps"
    if rule:
        raise DataSetUnavailableError(path, rule, "correct the file")
    return inputs.astype(np.float32), targets.astype(np.int64)

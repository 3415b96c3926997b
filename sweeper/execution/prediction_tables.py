"""Predictions in NumPy, HDF5, CSV and Parquet files, as a table with the columns of `predictions_file`.

The name of an array or column says what it holds: `logits` or `probabilities`, or `labels`, before or after the split's
name (`val_logits`, `labels_test`). CSV files have one column per class (`logits_0`, `logits_1`, …). A single number per
sample is the logit or the probability of class 1 of two classes (`as_two_classes`). Scores under another name are
probabilities if each row sums to 1 (a single number: if it lies in [0, 1]), else logits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sweeper.core.errors import SweeperError
from trainables.metrics.base import are_probabilities
from trainables.metrics.two_classes import as_two_classes
from trainables.training.evaluation import FITTED_ON
from trainables.training.own_loop import LOGITS, PROBABILITIES

SPLIT, TARGET, SAMPLE = "split", "target", "sample"

#: Other names of scores; None if the values must show what they are.
SCORES = {
    **dict.fromkeys((LOGITS, "logit"), LOGITS),
    **dict.fromkeys((PROBABILITIES, "probability", "probs", "prob", "proba", "p"), PROBABILITIES),
    **dict.fromkeys(("scores", "score", "predictions", "preds", "outputs"), None),
}
LABELS = (TARGET, "targets", "labels", "label", "y", "y_true")
SPLITS = {"valid": FITTED_ON, "validation": FITTED_ON}

#: A column with the scores of one class: `logits_3`, `p3`.
WIDE = re.compile(rf"({'|'.join(SCORES)})_?(\d+)")

Array = NDArray[np.generic]

#: Suffixes of files of named arrays.
ARRAYS = (".npz", ".npy", ".h5", ".hdf5")

FORMS = "give .npz, .npy, .h5, .csv or .parquet"


def predictions_table(file: Path, labels: Path | None = None, *, cross_fit: bool = False) -> tuple[pa.Table, list[str]]:
    """Read predictions in any of these formats.

    Args:
        file: the predictions.
        labels: the file of their targets, if they are in another file.
        cross_fit: take all samples as validation data instead of halving them; the file must have no other split.

    Returns:
        The table, and a sentence for each assumption about something that the file does not say.

    Raises:
        SweeperError: the file has another format, or its arrays do not belong together.
        OSError, ValueError, pa.ArrowException: the file cannot be read.
    """
    if file.suffix in ARRAYS:
        arrays = _arrays(file)
        if labels is not None:
            arrays[TARGET] = _labels(labels)
        table = _from_arrays(arrays, file)
    else:
        table = _columns(_read(file))
        if labels is not None:
            targets = pa.array(_labels(labels))
            if len(targets) != len(table):
                rule = f"{labels} has {len(targets):,} labels for {len(table):,} rows"
                raise SweeperError(rule, "give as many, in the same order")
            table = table.append_column(TARGET, targets)
    return _validation(table, file) if cross_fit else _halved(table)


def _read(file: Path) -> pa.Table:
    """Read a table. Raises SweeperError for another suffix."""
    readers: dict[str, Callable[[Path], pa.Table]] = {".csv": pyarrow.csv.read_csv, ".parquet": pq.read_table}
    if file.suffix not in readers:
        raise SweeperError(f"{file} is no file of predictions that is known", FORMS)
    return readers[file.suffix](file)


def _arrays(file: Path) -> dict[str, Array]:
    """Return the arrays of a NumPy or HDF5 file by name; pickled objects, which are programs, are refused."""
    if file.suffix in ARRAYS[2:]:
        try:
            import h5py
        except ImportError as error:
            raise SweeperError("h5py is not installed", "pip install 'calibration-sweeper[hdf5]'") from error
        with h5py.File(file) as held:
            return {name: array[()] for name, array in held.items() if isinstance(array, h5py.Dataset)}
    loaded = np.load(file, allow_pickle=False)
    return {"scores": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)


def _labels(file: Path) -> Array:
    """Return the targets [N] of a file that contains only targets; one-hot rows [N, K] become class indices."""
    if file.suffix in ARRAYS:
        held = _arrays(file)
    else:
        table = _read(file)
        held = {name: table[name].to_numpy() for name in table.column_names}
    chosen = [array for name, array in held.items() if name in LABELS] or [*held.values()]
    if len(chosen) != 1:
        raise SweeperError(f"{file} holds {', '.join(held)}", f"name the column or array of the labels {LABELS[2]!r}")
    return _classes(chosen[0], file)


def _classes(targets: Array, file: Path) -> Array:
    """Return class indices [N] from indices, one-hot rows [N, K] or a column [N, 1]; raise SweeperError for others."""
    if targets.ndim != 2:
        return targets
    if targets.shape[1] == 1:
        return targets[:, 0]
    # Scores given as labels by mistake would agree with themselves: an accuracy of 1.
    if not (((targets == 0) | (targets == 1)).all() and (targets.sum(axis=1) == 1).all()):
        raise SweeperError(f"{file}: labels {list(targets.shape)} are not one-hot", "give one class index per sample")
    return np.asarray(targets.argmax(axis=1))


def _from_arrays(arrays: Mapping[str, Array], file: Path) -> pa.Table:
    """Return the table of named arrays, one split after the other."""
    scores, targets = dict[str, tuple[str | None, Array]](), dict[str, Array]()
    for name, array in arrays.items():
        words = name.lower().split("_")
        if not any(word in SCORES or word in LABELS for word in words):
            continue
        # The kinds of bool, whole and floating-point numbers and text; `predictions_file` refuses labels that are text.
        if array.ndim not in (1, 2) or not array.size or array.dtype.kind not in "biufU":
            rule = f"{file}: {name} has the type {array.dtype} and the shape {list(array.shape)}"
            raise SweeperError(rule, "give numbers [samples] or [samples, classes]")
        split = "_".join(word for word in words if word not in SCORES and word not in LABELS)
        split = SPLITS.get(split, split)
        if any(word in LABELS for word in words):
            targets[split] = _classes(array, file)
        elif kind := next((word for word in words if word in SCORES), None):
            scores[split] = (SCORES[kind], array)
    if not scores or scores.keys() != targets.keys():
        rule = f"{file} holds {', '.join(arrays)}: scores of {_said(scores)}, labels of {_said(targets)}"
        raise SweeperError(rule, "name arrays val_logits, val_labels, test_logits, …, or give --labels FILE")
    parts = []
    for split, (kind, array) in scores.items():
        if len(array) != len(targets[split]):
            rule = f"{file} has {len(array):,} rows of scores and {len(targets[split]):,} labels"
            raise SweeperError(rule, "give as many, in the same order")
        columns = {} if not split else {SPLIT: pa.array([split] * len(array))}
        parts.append(pa.table({**columns, TARGET: pa.array(targets[split]), **_scores(kind, array)}))
    return pa.concat_tables(parts, promote_options="permissive")


def _said(splits: Mapping[str, object]) -> str:
    return ", ".join(split or "all samples" for split in splits) or "nothing"


def _scores(kind: str | None, values: Array) -> dict[str, pa.Array]:
    """Return the column of scores [N, K], [N, 1] or [N], under the name `logits` or `probabilities`."""
    known = np.asarray(values, np.float64)  # ValueError for text
    if known.ndim == 1 or known.shape[1] == 1:
        one = known.reshape(-1)
        # NaN, for example of a failed seed, decides nothing.
        kind = kind or (PROBABILITIES if ((one >= 0) & (one <= 1) | np.isnan(one)).all() else LOGITS)
        known = as_two_classes(one, probabilities=kind == PROBABILITIES)
    kind = kind or (PROBABILITIES if are_probabilities(known[~np.isnan(known).any(axis=1)]) else LOGITS)
    return {kind: pa.FixedSizeListArray.from_arrays(pa.array(known.reshape(-1)), known.shape[1])}


def _columns(table: pa.Table) -> pa.Table:
    """Return a table with one column of labels and one of scores, also from one column per class or one number each."""
    names = table.column_names
    if TARGET not in names and (other := [name for name in names if name in LABELS]):
        table = table.rename_columns([TARGET if name == other[0] else name for name in names])
    given = [name for name in (LOGITS, PROBABILITIES) if name in names]
    wide: dict[str, dict[int, str]] = {}
    for name in [] if given else names:
        if match := WIDE.fullmatch(name):
            wide.setdefault(match[1], {})[int(match[2])] = name
    for kind, columns in wide.items():
        if len(columns) > 1 and columns.keys() == {*range(len(columns))}:
            taken = [columns[number] for number in range(len(columns))]
            values = np.stack([table[name].to_numpy() for name in taken], axis=1)
            return _append(table.drop_columns(taken), _scores(SCORES[kind], values))
    for name in (given or [name for name in names if name in SCORES])[:1]:  # a further one is a hyperparameter
        column = table[name].combine_chunks()
        if pa.types.is_list(column.type) and pc.unique(pc.list_value_length(column)).to_pylist() == [1]:
            column = pc.list_flatten(column)  # from a network of one output
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            return _append(table.drop_columns([name]), _scores(SCORES[name], column.to_numpy(zero_copy_only=False)))
    return table


def _append(table: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def _validation(table: pa.Table, file: Path) -> tuple[pa.Table, list[str]]:
    """Return the table with all samples in `val`. Raises SweeperError if it has several splits."""
    if SPLIT in table.column_names:
        if len(names := table[SPLIT].unique()) > 1:
            rule = f"{file} has the splits {', '.join(map(str, names.to_pylist()))}, and cross-fitting needs one"
            raise SweeperError(rule, "leave out --cross-fit, or give the file without its splits")
        table = table.drop_columns([SPLIT])
    said = "each post-hoc method is fitted on four fifths of the samples and measured on the others, in turn"
    return table.append_column(SPLIT, pa.array([FITTED_ON] * len(table))), [said]


def _halved(table: pa.Table) -> tuple[pa.Table, list[str]]:
    """Split a table that has a single set of samples into random halves, `val` and `test`; return others unchanged."""
    own = {*table.column_names} - {TARGET, LOGITS, PROBABILITIES, SAMPLE}
    named = SPLIT in own
    several = own - {SPLIT} or (named and (len(table[SPLIT].unique()) > 1 or FITTED_ON in table[SPLIT].to_pylist()))
    repeated = SAMPLE in table.column_names and len(table[SAMPLE].unique()) < len(table)
    if several or repeated or not len(table):
        return table, []  # several runs or splits: their columns say which rows belong together
    fitted = np.random.default_rng(0).permutation(len(table)) < len(table) // 2
    names = pa.array(np.where(fitted, FITTED_ON, "test"))
    said = (
        f"the file has one set of samples: a random half of them, {FITTED_ON}, fits post-hoc methods, the other, test, "
        "measures; with few samples, --cross-fit uses all of them for both"
    )
    return (table.drop_columns([SPLIT]) if named else table).append_column(SPLIT, names), [said]

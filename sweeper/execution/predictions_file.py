"""Read and check predictions that were made elsewhere.

A row is a sample. `prediction_tables` finds the columns of labels, scores, splits, seeds and so on by their names;
`prediction_runs` divides the rows into runs. This module checks the columns' values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sweeper.execution.prediction_runs import Samples, Values, check_runs, nested, with_validation
from sweeper.execution.prediction_tables import (
    EPOCH,
    OF_SCORES,
    SAMPLE,
    SCORES,
    SEED,
    SPLIT,
    SPLITS as OTHER_NAMES,
    TARGET,
    WEIGHT,
    Column,
    Columns,
    Faults,
    read_columns,
)
from sweeper.execution.predictions import Predictions
from sweeper.space.components import WORD
from trainables.metrics.base import are_probabilities
from trainables.metrics.two_classes import as_two_classes
from trainables.training.evaluation import FITTED_ON
from trainables.training.own_loop import LOGITS, PROBABILITIES

_IS = pa.types
NUMBERS = (_IS.is_integer, _IS.is_floating)
TEXTS = (_IS.is_string, _IS.is_large_string)
LISTS = (_IS.is_list, _IS.is_large_list, _IS.is_fixed_size_list)
#: Types of columns that can be hyperparameters.
PLAIN = (*NUMBERS, *TEXTS, _IS.is_boolean, _IS.is_null)

#: Most values that are shown of a wrong row.
MOST_SHOWN = 5


def read_predictions(file: Path, labels: Path | None = None, *, cross_fit: bool = False) -> Predictions:
    """Read a file or folder of predictions.

    Args:
        file: predictions, in a format of `trainables.datasets.array_files` or `table_files`.
        labels: the file of their labels, if they are in another file.
        cross_fit: take all samples as validation data instead of halving them; the file must have no other split.

    Raises:
        SweeperError: the file cannot be read, lacks something or has invalid values (all faults at once).
    """
    faults = Faults(file)
    columns = read_columns(file, labels, faults)
    hyperparameters = _hyperparameters(columns, faults)
    logits = _logits(columns, faults)
    runs = _samples(columns.of, None if logits is None else logits.shape[1] - 1, faults)
    weights = _weights(_plain(columns.of[WEIGHT][0]), faults) if WEIGHT in columns.of else None
    faults.raise_any()  # the next checks compare runs and need valid columns
    assert logits is not None, "without them there is a fault"
    samples = Samples(hyperparameters, **runs)
    configurations, rows = samples.runs()
    check_runs(samples, configurations, rows, logits, faults)
    faults.raise_any()  # runs of different samples cannot be halved alike
    rows, notes = with_validation(rows, cross_fit, faults)
    faults.raise_any()
    if columns.unused:
        notes.append(f"not used: {', '.join(columns.unused)}")
    names = sorted(next(iter(rows.values())), key=lambda name: (name != FITTED_ON, name))
    seeds, epochs = (sorted({at[place] for at in rows}) for place in (1, 2))
    return Predictions(nested(configurations), seeds, epochs, names, logits, samples.targets, rows, weights, notes)


def _samples(of: Mapping[str, Sequence[Column]], most: int | None, faults: Faults) -> Values:
    """Return the columns of `Samples` besides hyperparameters; `most` is the last class, if it is known."""
    given = {role: _plain(own[0]) for role, own in of.items()}
    size = len(next(iter(given.values()), ()))
    limits = {TARGET: (0, most), SEED: (0, None), EPOCH: (1, None)}
    numbers = {
        role: _whole_numbers(given.get(role, pa.array(np.full(size, low))), role, low, high, faults)
        for role, (low, high) in limits.items()
    }
    return {
        "targets": numbers[TARGET],
        "seeds": numbers[SEED],
        "epochs": numbers[EPOCH],
        "splits": _splits(given[SPLIT], faults) if SPLIT in given else None,
        "numbers": _numbers_of(given[SAMPLE], faults) if SAMPLE in given else None,
    }


def _plain(column: Column) -> pa.Array:
    """Return a column in one piece, without extension type."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.storage if isinstance(array.type, pa.ExtensionType) else array


def _is(kind: pa.DataType, *kinds: Callable[[pa.DataType], bool]) -> bool:
    return any(is_kind(kind) for is_kind in kinds)


def _hyperparameters(columns: Columns, faults: Faults) -> dict[str, pa.Array]:
    """Return the other columns by name, without those that number or describe samples, which become unused."""
    kept = dict[str, pa.Array]()
    for name, column in columns.others.items():
        values, key = _plain(column), name.removeprefix("config_")
        kind = values.type
        plain = _is(kind, *PLAIN)
        if _is_empty(values) or (plain and _differs_between_samples(values)):
            columns.unused.append(name)
        elif not plain or not WORD.fullmatch(key):
            remedy = "leave it out, or give numbers, texts or true and false, under lower-case letters, digits and _"
            faults.add(f"the column {name!r} of {faults.file.name} ({kind}) is no hyperparameter", remedy)
        elif _is(kind, _IS.is_floating) and pc.any(pc.is_inf(values)).as_py():
            faults.add(f"the column {name!r} holds infinite numbers", "leave it out, or write these as missing")
        elif key in kept or key in columns.of:
            faults.add(f"the columns {key} and config_{key} are one hyperparameter", "leave one out")
        else:
            kept[key] = values
    return kept


def _is_empty(column: pa.Array) -> bool:
    return pc.all(pc.is_null(column, nan_is_null=_is(column.type, *PLAIN))).as_py() is True


def _differs_between_samples(column: pa.Array) -> bool:
    """Return whether there are fewer than two rows for each value, so that no two samples would be of one run."""
    return bool(pc.count_distinct(column, mode="all").as_py() > max(1, len(column) // 2))


def _logits(columns: Columns, faults: Faults) -> NDArray[np.float32] | None:
    """Return logits [N, K], or the logarithms of given probabilities; `None` after adding a fault."""
    kind = next((kind for kind in OF_SCORES if kind in columns.of), None)
    own = [] if kind is None else [*map(_plain, columns.of[kind])]
    values = _scores(columns.names[kind], own, faults) if kind is not None else None
    if values is None:
        return None
    if single := values.shape[1] == 1:
        one = values[:, 0]
        if kind == SCORES:  # NaN, for example of a failed seed, decides nothing
            kind = PROBABILITIES if ((one >= 0) & (one <= 1) | np.isnan(one)).all() else LOGITS
        values = as_two_classes(one, probabilities=kind == PROBABILITIES)
    known = values[~np.isnan(values).any(axis=1)]  # NaN marks a seed that diverged, which is allowed
    sound = are_probabilities(known)
    if kind == LOGITS and sound and not single:
        faults.add(f"rows of {LOGITS} are probabilities, each sums to 1", f"rename them to {PROBABILITIES}")
    elif kind == PROBABILITIES and len(known) and not sound:
        worst = known[np.argmax((known < 0).any(axis=1) + np.abs(known.sum(axis=1) - 1))]
        shown = ", ".join(f"{value:.3g}" for value in worst[:MOST_SHOWN])
        faults.add(f"{PROBABILITIES} of a row are {shown}", "none is negative, and each row sums to 1")
    # log 0 = −∞ and values beyond float32 are kept; the evaluation reports them as not finite.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        logits = np.log(values) if kind == PROBABILITIES or (kind == SCORES and sound) else values
        return np.asarray(logits.astype(np.float32))


def _scores(name: str, columns: Sequence[pa.Array], faults: Faults) -> NDArray[np.float64] | None:
    """Return one column of lists, or columns of numbers, as float64 [N, K] with NaN for missing; `None` for a fault."""
    types, rule = [column.type for column in columns], ""
    if len(columns) == 1 and _is(types[0], *LISTS) and _is(types[0].value_type, *NUMBERS):
        (column,) = columns
        flat, sizes = pc.list_flatten(column), pc.unique(pc.list_value_length(column)).to_pylist()
        if missing := column.null_count or flat.null_count:
            rule = f"{missing:,} {name} of {faults.file.name} are missing"
        elif len(sizes) != 1 or not sizes[0]:
            rule = f"rows of {faults.file.name} have {', '.join(map(str, sorted(sizes)[:4]))} {name}"
        else:
            return np.asarray(flat.cast(pa.float64(), safe=False).to_numpy().reshape(-1, sizes[0]))
    elif odd := [own for own in types if not _is(own, *NUMBERS)]:
        rule = f"{name} of {faults.file.name} have the type {odd[0]}"
    elif len(columns) == 1 and _is(types[0], _IS.is_integer):
        rule = f"{name} of {faults.file.name} are whole numbers, such as predicted classes"
    else:
        own = [column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False) for column in columns]
        return np.stack(own, axis=1)
    faults.add(rule, f"give each row's {name} as numbers, one per class, of equal length in all rows")
    return None


def _classes(labels: pa.Array) -> pa.Array:
    """Return labels as one number each, from one-hot rows, too; others unchanged."""
    if not (_is(labels.type, *LISTS) and _is(labels.type.value_type, *NUMBERS)) or labels.null_count:
        return labels
    flat, sizes = pc.list_flatten(labels), pc.unique(pc.list_value_length(labels)).to_pylist()
    if len(sizes) != 1 or not sizes[0] or flat.null_count:
        return labels
    rows = flat.cast(pa.float64(), safe=False).to_numpy().reshape(-1, sizes[0])
    # Scores given as labels by mistake would agree with themselves: an accuracy of 1.
    if sizes[0] > 1 and not (((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all()):
        return labels
    return pa.array(rows[:, 0] if sizes[0] == 1 else rows.argmax(axis=1))


def _whole_numbers(column: pa.Array, name: str, least: int, most: int | None, faults: Faults) -> NDArray[np.int64]:
    """Return a column as int64 [N]; zeros after adding a fault for values that are not integers or out of range."""
    allowed = f"whole numbers from {least}" + (f" to {most}" if most is not None else "")
    column = _classes(column) if name == TARGET else column
    column = column.cast(pa.int8()) if _IS.is_boolean(column.type) else column  # labels that are true and false
    if not _is(column.type, *NUMBERS):
        lists = ", and no one-hot rows" if _is(column.type, *LISTS) else ""
        faults.add(f"{name} holds {column.type}{lists}", f"give {allowed}")
    elif missing := pc.sum(pc.is_null(column, nan_is_null=True)).as_py():
        faults.add(f"{missing:,} rows have no {name}", f"give {allowed}")
    else:
        values = column.to_numpy(zero_copy_only=False)
        # Refuse 2**63, too: int64's largest value rounds up to it as a float, and would overflow in the cast.
        top = np.iinfo(np.int64).max if most is None else most
        wrong = (values != np.floor(values)) | (values < least) | (values > top) | (values >= 2.0**63)
        if not wrong.any():
            return np.asarray(values.astype(np.int64))
        shown = f"{name} is {values[wrong][0]} in a row"
        faults.add(f"{shown}; {int(wrong.sum()):,} of {len(values):,} rows are not allowed", f"give {allowed}")
    return np.zeros(len(column), np.int64)


def _splits(column: pa.Array, faults: Faults) -> pa.Array:
    """Return the names of splits, `val` for other names of it."""
    if not _is(column.type, *TEXTS) or column.null_count:
        rule = f"holds {column.type}" if not column.null_count else f"is missing in {column.null_count:,} rows"
        faults.add(f"split {rule}", f"give texts: {FITTED_ON}, test and others")
        return column
    names = {name: OTHER_NAMES.get(name.lower(), name.lower()) for name in pc.unique(column).to_pylist()}
    odd = (f"split is {name[:40]!r}" for name in names if not WORD.fullmatch(names[name]))
    faults.add_first(odd, "names of splits are lower-case letters, digits and _")
    if len(set(names.values())) < len(names):
        faults.add(f"split has the names {', '.join(names)}, some of one split", "give each split one name")
    codes = column.dictionary_encode()
    return pa.DictionaryArray.from_arrays(codes.indices, [*names.values()]).dictionary_decode()


def _numbers_of(column: pa.Array, faults: Faults) -> NDArray[np.int64]:
    """Return the place of each row's sample in the order of all samples [N]."""
    if column.null_count or not _is(column.type, _IS.is_integer, *TEXTS):
        rule = f"{SAMPLE} holds {column.type}{', some missing' if column.null_count else ''}"
        faults.add(rule, "give each sample a whole number or a text")
        return np.arange(len(column))
    return np.unique(column.to_numpy(zero_copy_only=False), return_inverse=True)[1].astype(np.int64)


def _weights(column: pa.Array, faults: Faults) -> NDArray[np.float32]:
    """Return weights [N]; add a fault if one is no finite number above 0."""
    if not _is(column.type, *NUMBERS):
        faults.add(f"{WEIGHT} holds {column.type}", "give a number above 0 for each sample")
        return np.ones(len(column), np.float32)
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and is refused
        weights: NDArray[np.float32] = column.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    if wrong := int((~(np.isfinite(weights) & (weights > 0))).sum()):
        faults.add(f"{wrong:,} of {len(weights):,} weights are not above 0", "leave out rows without a weight")
    return weights

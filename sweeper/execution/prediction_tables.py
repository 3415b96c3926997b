"""Predictions in files of arrays and in tables, as Arrow columns under the names of their roles.

`ROLES` is the only place that says which name means what, for arrays and columns alike. A name in an array file can
have the name of a split before or after it (`val_logits`, `labels_test`). Scores can have one column per class
(`logits_0`, `logits_1`, …). Everything else is a hyperparameter, if it has one value per sample or one for all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from trainables.datasets.array_files import ARRAYS, StoredArray, stored_arrays
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.table_files import read_table
from trainables.training.evaluation import FITTED_ON
from trainables.training.own_loop import LOGITS, PROBABILITIES

#: Scores of an unknown kind: values that sum to 1 are probabilities.
SCORES = "scores"

SPLIT, TARGET, SAMPLE, SEED, EPOCH, WEIGHT = "split", "target", "sample", "seed", "epoch", "weight"

#: Role → its names.
ROLES = {
    LOGITS: ("logits", "logit", "log_probs", "logprobs", "log_probabilities", "log_softmax"),
    PROBABILITIES: ("probabilities", "probability", "probs", "prob", "proba", "softmax", "p"),
    SCORES: ("scores", "score", "predictions", "prediction", "preds", "pred", "y_pred", "outputs", "output"),
    TARGET: ("target", "targets", "labels", "label", "y_true", "true_label", "true_labels", "ground_truth", "y"),
    SPLIT: ("split", "splits", "subset", "partition"),
    SEED: ("seed", "seeds", "replicate", "replicates"),
    EPOCH: ("epoch", "epochs"),
    SAMPLE: ("sample", "samples", "sample_id", "sample_ids", "id", "ids", "index", "indices", "idx"),
    WEIGHT: ("weight", "weights", "sample_weight", "sample_weights"),
}
ROLE_OF = {name: role for role, names in ROLES.items() for name in names}
OF_SCORES = (LOGITS, PROBABILITIES, SCORES)

#: Names that also suit a hyperparameter: they have their role only where no other name has it.
WEAK = ("p", "y")

#: Other names of splits.
SPLITS = {"valid": FITTED_ON, "validation": FITTED_ON, "dev": FITTED_ON, "training": "train", "testing": "test"}
USUAL_SPLITS = {FITTED_ON, "train", "test", *SPLITS}

#: The scores of one class: `logits_3`, `p3`.
WIDE = re.compile(rf"({'|'.join(name for role in OF_SCORES for name in ROLES[role])})_?(\d+)")

#: The column in which pandas writes row numbers.
ROW_NUMBERS = re.compile(r"(Unnamed: \d+|__index_level_\d+__|)")

TABLES = (".csv", ".parquet", ".jsonl", ".json")
FORMS = (*ARRAYS, *TABLES)
SAME_TYPES = "give the arrays of all splits one type"
SAME_ORDER = "give one for each sample, in the same order"

Column: TypeAlias = pa.Array | pa.ChunkedArray


class Faults:
    """The faults of a file, collected to be raised together."""

    def __init__(self, file: Path) -> None:
        self.file, self.faults = file, list[Fault]()

    def add(self, rule: str, remedy: str) -> None:
        """Add a rule that the file breaks."""
        self.faults.append(Fault("", rule, remedy))

    def add_first(self, rules: Iterable[str], remedy: str) -> None:
        """Add the first of many similar faults, with the number of the others up to 999."""
        if first := [*islice(rules, 1000)]:
            more = f"; the same holds for {len(first) - 1} more" if first[1:] else ""
            self.add(f"{first[0]}{more}", remedy)

    def raise_any(self) -> None:
        """Raise InvalidSearchSpace if there are faults."""
        if self.faults:
            raise InvalidSearchSpace(self.faults, str(self.file))


@dataclass
class Columns:
    """The columns of a file.

    Attributes:
        of: role → its columns: one, or the scores of each class.
        names: role → the names of its columns, as shown to people.
        others: the remaining columns by name.
        unused: names of arrays and columns that have no role and cannot be hyperparameters.
    """

    of: dict[str, list[Column]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    others: dict[str, Column] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def word_of(name: str) -> str:
    """Return a name in lower case with `_` for everything that is no letter or digit.

    Example:
        >>> word_of("val/Logits")
        'val_logits'
    """
    return re.sub(r"[\W_]+", "_", name.lower()).strip("_")


def read_columns(file: Path, labels: Path | None, faults: Faults) -> Columns:
    """Read predictions, and their labels where these are in another file; add what is wrong to `faults`.

    Raises:
        SweeperError: a file cannot be read, or has no arrays or columns that belong together.
    """
    try:
        contents = [_contents(path, role) for path, role in ((file, SCORES), (labels, TARGET)) if path is not None]
        tables, unused = [part for part in contents if isinstance(part, pa.Table)], list[str]()
        # Arrays of both files together: each can have those of some splits.
        if arrays := [array for part in contents if isinstance(part, list) for array in part]:
            table, unused = _table_of(arrays, faults)
            tables.append(table)
    except DataSetUnavailableError as error:
        raise SweeperError(f"{error.path}: {error.rule}", error.remedy) from error
    if len({len(table) for table in tables}) > 1:
        counts = " and ".join(f"{len(table):,}" for table in tables)
        faults.add(f"{file.name} and {labels} have {counts} rows", SAME_ORDER)
    names = Counter(name for table in tables for name in table.column_names)
    if doubled := [name for name, count in names.items() if count > 1]:
        faults.add(f"{', '.join(doubled)} of {file.name} are there twice", "leave one out")
    faults.raise_any()
    columns = {name: table[name] for table in tables for name in table.column_names}
    return _in_roles(columns, unused, faults)


def _contents(path: Path, role: str) -> list[StoredArray] | pa.Table:
    """Return the arrays or the table in a file; a single one has the `role`, whatever its name."""
    if path.is_dir() or path.suffix in ARRAYS:
        arrays = stored_arrays(path)
        alone = len(arrays) == 1 and (role == TARGET or path.suffix == ".npy")
        return [replace(arrays[0], name=role)] if alone else arrays
    if path.is_file() and path.suffix not in TABLES:
        raise DataSetUnavailableError(path, "is no file of predictions that is known", f"give {', '.join(FORMS)}")
    table = read_table(str(path))
    return table.rename_columns([role]) if role == TARGET and table.num_columns == 1 else table


def _split_and_name(word: str) -> tuple[str, str]:
    """Return the split and the name of a role in an array's name; the split is empty where none is named."""
    if _is_known(word):
        return "", word
    for name in sorted(ROLE_OF, key=len, reverse=True):
        for split in (word.removesuffix(f"_{name}"), word.removeprefix(f"{name}_")):
            if split != word:
                return split, name
    return "", word


def _is_known(name: str) -> bool:
    return name in ROLE_OF or WIDE.fullmatch(name) is not None


def _is_scores(name: str) -> bool:
    return ROLE_OF.get(name) in OF_SCORES or WIDE.fullmatch(name) is not None


@dataclass
class _Sorted:
    """The arrays of files: with roles by split, with one value for all samples, and others."""

    parts: dict[str, dict[str, StoredArray]] = field(default_factory=dict)
    constants: dict[str, StoredArray] = field(default_factory=dict)
    others: dict[str, StoredArray] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Number of samples of each split, as a shape."""
        return {split: max(array.shape[:1] for array in own.values()) for split, own in self.parts.items()}


def _sort_out(arrays: Sequence[StoredArray], faults: Faults) -> _Sorted:
    """Divide arrays by what their names and shapes say; add a fault for two of one place."""
    result, named = _Sorted(), [_split_and_name(word_of(array.name)) for array in arrays]
    scored = {split for array, (split, name) in zip(arrays, named, strict=True) if _is_scores(name) and array.shape}
    for array, (split, name) in zip(arrays, named, strict=True):
        # Any split can have scores, and other arrays where it has scores: `label_smoothing` is no label.
        known = _is_known(name) and (not split or split in scored or split in USUAL_SPLITS)
        single = array.shape in ((), (1,)) and not (known and (split or _is_scores(name) or ROLE_OF[name] == TARGET))
        name = name if known else array.name
        if known and not single:
            place = result.parts.setdefault(SPLITS.get(split, split), {})
        else:
            place = result.constants if single and (known or _usable(array)) else result.others
        if name in place:
            faults.add(f"{place[name].name} and {array.name} of {faults.file.name} are the same", "leave one out")
        place[name] = array
    return result


def _table_of(arrays: Sequence[StoredArray], faults: Faults) -> tuple[pa.Table, list[str]]:
    """Return a table of arrays, one split after the other, and the names of arrays that it does not use."""
    given = _sort_out(arrays, faults)
    parts, sizes, rest = given.parts, given.sizes, given.others
    if not parts:
        held = ", ".join(array.name for array in arrays) or "nothing"
        faults.add(f"{faults.file.name} has no scores or labels, but {held}", "name arrays logits and labels")
    elif len(parts) > 1 and ("" in parts or len({frozenset(own) for own in parts.values()}) > 1):
        named = {split or "no split": ", ".join(array.name for array in own.values()) for split, own in parts.items()}
        shown = "; ".join(f"{split}: {names}" for split, names in named.items())
        faults.add(f"splits have different arrays ({shown})", "name arrays val_logits, val_labels, test_logits, …")
    if parts.keys() == {""}:  # an array of one value per sample can be a hyperparameter of several runs
        own = {name: array for name, array in rest.items() if _usable(array) and array.shape == sizes[""]}
        parts[""] |= own
        rest = {name: array for name, array in rest.items() if name not in own}
    columns = [
        {name: _column(array, sizes[split], faults) for name, array in own.items()} for split, own in parts.items()
    ]
    faults.raise_any()
    tables = [pa.table(own) for own in columns]
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:  # such as texts and numbers
        raise SweeperError(f"{faults.file}: arrays of splits have different types: {error}", SAME_TYPES) from error
    if any(parts):
        names = [name for name, own in zip(parts, tables, strict=True) for _ in range(len(own))]
        table = table.append_column(SPLIT, pa.array(names))
    for name, array in given.constants.items():
        table = table.append_column(name, pa.repeat(_values(array)[0], len(table)))
    return table, [*rest]


def _usable(array: StoredArray) -> bool:
    return not array.fault and array.dtype.kind in "biufSUO"


def _column(array: StoredArray, size: tuple[int, ...], faults: Faults) -> pa.Array:
    """Return an array [N], [N, 1] or [N, K] as a column of `size` N; an empty one after adding a fault."""
    shape = array.shape
    if array.fault or len(shape) not in (1, 2) or 0 in shape or array.dtype.kind not in "biufSUO":
        rule = f"{array.name} has the type {array.dtype} and the shape {list(shape)}"
        remedy = "give numbers [samples] or [samples, classes], and splits as texts"
        faults.add(f"{array.name} {array.fault}" if array.fault else rule, remedy)
    elif shape[:1] != size:
        faults.add(f"{array.name} has {shape[0]:,} rows, and other arrays {size[0]:,}", SAME_ORDER)
    else:
        return _values(array) if shape[1:] in ((), (1,)) else _lists(_values(array), shape[1])
    return pa.nulls(0)


def _lists(flat: pa.Array, length: int) -> pa.Array:
    # Lists of variable length: splits of different numbers of classes are then refused like rows of them.
    offsets = pa.array(np.arange(0, len(flat) + 1, length), pa.int64())
    return pa.LargeListArray.from_arrays(offsets, flat)


def _values(array: StoredArray) -> pa.Array:
    """Return all values of an array, row by row."""
    flat = array.load().reshape(-1)
    if flat.dtype.kind in "UO":
        return pa.array(flat.tolist(), pa.string())
    if flat.dtype.kind == "f" and flat.dtype.itemsize not in (4, 8):
        flat = flat.astype(np.float32 if flat.dtype.itemsize == 2 else np.float64)
    return pa.array(flat.astype(flat.dtype.newbyteorder("=")))  # Arrow has only this machine's order of bytes


@dataclass(frozen=True)
class _Source:
    """Columns that have a role together: one, or the scores of each class."""

    role: str
    name: str
    columns: Mapping[str, Column]

    def __str__(self) -> str:
        names = [*self.columns]
        return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"

    @property
    def numbered(self) -> bool:
        """Whether it has all classes: one column, that of class 1 or of all classes, or those from 0 without gaps."""
        classes = [wide and int(wide[2]) for wide in map(WIDE.fullmatch, map(word_of, self.columns))]
        return classes in ([None], [1]) or (len(classes) > 1 and classes == [*range(len(classes))])


def _sources(columns: Mapping[str, Column]) -> list[_Source]:
    wide, sources = dict[str, dict[int, str]](), list[_Source]()
    for name, column in columns.items():
        word = word_of(name)
        if numbered := WIDE.fullmatch(word):
            wide.setdefault(numbered[1], {})[int(numbered[2])] = name
        elif word in ROLE_OF:
            sources.append(_Source(ROLE_OF[word], word, {name: column}))
    for word, names in wide.items():
        sources.append(
            _Source(ROLE_OF[word], word, {names[number]: columns[names[number]] for number in sorted(names)})
        )
    return sources


def _in_roles(columns: Mapping[str, Column], unused: Sequence[str], faults: Faults) -> Columns:
    """Return columns under their roles; add a fault for each role that several could have."""
    by_role = dict[str, list[_Source]]()
    for source in _sources(columns):
        by_role.setdefault(SCORES if source.role in OF_SCORES else source.role, []).append(source)
    result, taken = Columns(), set[str]()
    for role, sources in by_role.items():
        chosen = [source for source in sources if source.name not in WEAK] or sources
        if len(chosen) > 1:
            rule = f"{' and '.join(map(str, chosen))} of {faults.file.name} are all {role}"
            faults.add(rule, "leave out all but one, or rename what means something else")
        elif not chosen[0].numbered:
            faults.add(f"{chosen[0]} are not the columns of classes 0, 1, 2, …", "number them from 0, one per class")
        result.of[chosen[0].role] = [*chosen[0].columns.values()]
        result.names[chosen[0].role] = str(chosen[0])
        taken.update(chosen[0].columns)
    for role, remedy in ((SCORES, "logits or probabilities"), (TARGET, "label, or give --labels FILE")):
        if role not in by_role:
            held = ", ".join([*columns, *unused]) or "nothing"
            faults.add(f"{faults.file.name} has no {role}, but {held}", f"call the array or column {remedy}")
    rest = {name: column for name, column in columns.items() if name not in taken}
    result.others = {name: column for name, column in rest.items() if not ROW_NUMBERS.fullmatch(name)}
    result.unused = [*unused, *(name for name in rest if name not in result.others)]
    return result

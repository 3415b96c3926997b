"""Your own arrays, in `.npz`, HDF5 or Parquet, and tables, in CSV, Parquet or JSON Lines.

One column of a table is the target; the others are features, or one is text. Numbers are standardised; texts and
booleans become one column per value. A missing number is replaced by the mean and marked in a separate column. A
missing text is treated like any other value. Empty columns, and columns in which pandas writes row numbers, are not
features. Means, values and vocabularies come from the training rows alone.

Rows are divided by a seeded stratified draw (`stratified_split`), by groups if `group` names a column, or by the column
that `split` names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from trainables.datasets.array_files import stored_arrays
from trainables.datasets.base import DATASETS, DataSet, Fraction, Indices, divided, stratified_split
from trainables.datasets.cache import DataSetUnavailableError, refused
from trainables.datasets.raw_inputs import (
    Column,
    TableRows,
    TokenizerIds,
    WordIds,
    as_numbers,
    as_texts,
    form_of,
    words_of,
)
from trainables.datasets.table_files import numbers_in, read_table
from trainables.datasets.text import frequent_words
from trainables.datasets.transforms import Standardised, TableFeatures, Transform
from trainables.extensions.libraries import existing_folder, required_library
from trainables.registry import SPLITS, Hyperparameter
from trainables.registry.names import did_you_mean

SPLIT_SEED = 42
ARRAYS_REMEDY = "write it with numpy.savez(path, inputs=…, targets=…[, split=…])"
PARQUET_REMEDY = "write the columns inputs (list of numbers), target (whole number) and, if wanted, split (text)"

Arrays = dict[str, NDArray[np.generic]]


def read_arrays(path: Path) -> tuple[Arrays, list[str]]:
    """Read `inputs`, `targets` and, if present, `split` (texts train, val, test) without unpickling.

    Returns:
        The arrays, and the names of others, which are not loaded.

    Raises:
        DataSetUnavailableError: the file is damaged, or lacks an array.
    """
    stored = {array.name: array for array in stored_arrays(path)}
    if missing := [name for name in ("inputs", "targets") if name not in stored]:
        raise DataSetUnavailableError(path, f"lacks the array {' and '.join(missing)}", ARRAYS_REMEDY)
    used = [name for name in ("inputs", "targets", "split") if name in stored]
    return {name: stored[name].load() for name in used}, [name for name in stored if name not in used]


def read_parquet(path: Path) -> tuple[Arrays, list[str]]:
    """Read the columns `inputs`, `target` and, if present, `split`; return them, and the names of others.

    Raises:
        DataSetUnavailableError: the file is damaged, lacks a column, or rows differ in length.
    """
    table = read_table(str(path), ["split"])
    missing = [name for name in ("inputs", "target") if name not in table.column_names]
    if missing:
        raise DataSetUnavailableError(path, f"lacks the column {' and '.join(missing)}", PARQUET_REMEDY)
    unequal = refused(path, "inputs are not rows of equal length", PARQUET_REMEDY, ValueError, TypeError)
    with unequal, np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and `_checked` refuses it
        inputs = np.array(table.column("inputs").to_pylist(), np.float32)
    arrays = {"inputs": inputs, "targets": table.column("target").to_numpy()}
    if "split" in table.column_names:
        arrays["split"] = np.array(table.column("split").to_pylist())
    return arrays, [name for name in table.column_names if name not in ("inputs", "target", "split")]


def splits_of(
    path: Path, targets: NDArray[np.generic], given: NDArray[np.generic] | None, fractions: tuple[float, float]
) -> list[Indices]:
    """Return training, validation and test indices: the `given` splits, else a stratified draw.

    Raises:
        DataSetUnavailableError: a given split name is unknown or a split is empty.
    """
    if given is None:
        return stratified_split(targets, fractions, SPLIT_SEED)
    given = given.astype(str)
    unknown = sorted(set(given.ravel().tolist()) - set(SPLITS))
    if unknown or given.shape != targets.shape:
        raise DataSetUnavailableError(
            path, f"has unknown splits {unknown} or not one split per sample", "use train, val and test"
        )
    parts = [np.flatnonzero(given == name).astype(np.int64) for name in SPLITS]
    for name, part in zip(SPLITS, parts, strict=True):
        if not len(part):
            raise DataSetUnavailableError(path, f"has no samples in split {name}", "give every split some samples")
    return parts


@DATASETS.add("arrays")
def load_arrays(
    path: str, standardise: bool = True, validation_fraction: Fraction = 0.1, test_fraction: Fraction = 0.2
) -> DataSet:
    """Your own arrays in .npz, HDF5 or Parquet.

    Load arrays: inputs [N, ...] of numbers and targets [N], classes 0 to K-1.

    Args:
        path: an `.npz` or `.h5` file with arrays `inputs`, `targets` and optionally `split`; or a Parquet file with
            columns `inputs` (a list of numbers per row), `target` and optionally `split` (`train`, `val` or `test`).
        standardise: subtract the training mean of each input and divide by its training standard deviation [our
            choice].
        validation_fraction: share of each class for validation, if the file has no split.
        test_fraction: share of each class for testing, if the file has no split.

    Raises:
        DataSetUnavailableError: the file is missing, broken or inconsistent.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataSetUnavailableError(file, "the file is missing", "check the data set's path")
    arrays, unused = read_parquet(file) if file.suffix == ".parquet" else read_arrays(file)
    inputs, targets = _checked(file, arrays["inputs"], arrays["targets"])
    parts = splits_of(file, targets, arrays.get("split"), (validation_fraction, test_fraction))
    classes, transform = int(targets.max()) + 1, None
    if standardise:
        module = Standardised(*(getattr(inputs[parts[0]], name)(0, dtype=np.float64) for name in ("mean", "std")))
        transform = Transform(module, torch.from_numpy(inputs[parts[2]]))
        inputs = module(torch.from_numpy(inputs)).numpy()
    data = divided("arrays", inputs, targets, parts, classes, transform=transform)
    return replace(data, notes=(f"{file.name}: not used: {', '.join(unused)}",)) if unused else data


def _checked(
    path: Path, inputs: NDArray[np.generic], targets: NDArray[np.generic]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rule, targets = None, targets[:, 0] if targets.shape[1:] == (1,) else targets
    if targets.dtype.kind == "b" or (targets.dtype.kind == "f" and (targets == np.floor(targets)).all()):
        with np.errstate(invalid="ignore"):  # infinity becomes a negative number, which is refused below
            targets = targets.astype(np.int64)  # labels as they are for a binary cross-entropy
    if inputs.dtype.kind in "iuf":
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and is refused
            inputs = inputs.astype(np.float32)
    if inputs.ndim < 2 or len(inputs) != len(targets) or targets.ndim != 1 or not inputs.size:
        rule = f"has inputs {inputs.shape} and targets {targets.shape}, not [N, ...] and [N]"
    elif inputs.dtype != np.float32 or not np.isfinite(inputs).all():
        rule = "has inputs that are not finite numbers"
    elif targets.dtype.kind not in "iu":
        rule = f"has targets of type {targets.dtype}, not whole numbers"
    elif not np.array_equal(classes := np.unique(targets), np.arange(len(classes))):
        rule = "has targets that are not the classes 0, 1, 2, … without gaps"
    elif len(classes) < 2:
        rule = "has targets of one class"
    if rule:
        raise DataSetUnavailableError(path, rule, "correct the file")
    return inputs.astype(np.float32, copy=False), targets.astype(np.int64)


#: Maximum number of values of a text column; each value becomes a feature. A column with more values is a text or a
#: key. Our choice.
MOST_VALUES = 100

#: Maximum number of classes, as many as ImageNet has. A target with more is probably a key. Our choice.
MOST_CLASSES = 1000

#: Number of training rows used to test whether a column reveals the target. Our choice.
LOOKED_AT = 10_000

#: Maximum number of distinct numbers in a target of classes. A target with more is for regression. Our choice.
MOST_NUMBERS = 20

NUMBER = "plain numbers"

#: Names of the column in which pandas writes row numbers, in CSV and Parquet.
INDEX = re.compile(r"(Unnamed: \d+|__index_level_\d+__|)")


class _Rows:
    """The rows of a table, their classes and their splits."""

    def __init__(
        self,
        file: str,
        target: str,
        group: str | None,
        split: str | None,
        weight: str | None,
        fractions: tuple[float, float],
        seed: int,
    ) -> None:
        self.file, self.table = file, read_table(file, [name for name in (target, group, split) if name])
        for name in filter(None, (target, group, split, weight)):
            self.require(name)
            if (nested := self.table.column(name).type).num_fields:
                raise DataSetUnavailableError(file, f"{name} holds {nested}", "choose a column of texts or numbers")
        self.target = target
        self.targets, self.classes = self._classes(target)
        self.weights = None if weight is None else self._weights(weight)
        self.parts = self._divided(group, split, fractions, seed)
        named = [name for name in self.table.column_names if name not in (target, group, split, weight)]
        self.left_out = {name: "row numbers" for name in named if INDEX.fullmatch(name)}
        self.left_out |= {name: "empty" for name in named if self.table.column(name).null_count == len(self.table)}
        self.features = [name for name in named if name not in self.left_out]
        seen = set(self.targets[self.parts[0]].tolist())
        if unseen := [name for number, name in enumerate(self.classes) if number not in seen]:
            rule = f"no training row is {target} = {unseen[0]}"
            raise DataSetUnavailableError(file, rule, "divide the rows otherwise")

    def _classes(self, target: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Return the class of each row, and the names of the classes in order."""
        import pyarrow as pa
        import pyarrow.compute as compute

        values = self.table.column(target).combine_chunks()
        is_kind = {name: getattr(pa.types, f"is_{name}")(values.type) for name in ("floating", "decimal", "integer")}
        if missing := compute.sum(compute.is_null(values, nan_is_null=is_kind["floating"])).as_py():
            rule = f"{missing:,} of {len(values):,} rows have no {target}"
            raise DataSetUnavailableError(self.file, rule, "leave these rows out")
        text = pa.types.is_string(values.type)
        if not (text or pa.types.is_boolean(values.type) or any(is_kind.values())):
            rule = f"{target} holds {values.type}"
            raise DataSetUnavailableError(self.file, rule, "choose a column of texts or whole numbers")
        kept = values.dictionary_encode()
        names = kept.dictionary.to_pylist()
        # fewer than two rows per value: the column is a key or a measurement
        if not 2 <= len(names) <= min(MOST_CLASSES, len(values) // 2):
            rule = f"{target} has {len(names):,} values in {len(values):,} rows, which are no classes"
            raise DataSetUnavailableError(self.file, rule, "choose another target, or make classes of its values")
        numbers = numbers_in(kept.dictionary, typed=True) if text else kept.dictionary
        if numbers is not None and not pa.types.is_boolean(values.type):
            self._require_classes(target, [float(number) for number in numbers.to_pylist()], is_kind["integer"])
        order = sorted(range(len(names)), key=lambda number: names[number])
        places: NDArray[np.int64] = np.argsort(order)[kept.indices.to_numpy()]  # each name's index in the order
        whole = is_kind["floating"] or is_kind["decimal"]
        return places, tuple(str(int(names[number]) if whole else names[number]) for number in order)

    def _require_classes(self, target: str, numbers: Sequence[float], integers: bool) -> None:
        """Check that the values of the target are classes.

        Raises:
            DataSetUnavailableError: they are a target of regression.
        """
        fraction = next((number for number in numbers if not number.is_integer()), None)
        low, high = min(numbers), max(numbers)
        # any number of consecutive whole numbers from 0 or 1 are classes
        counted = integers and low in (0, 1) and high - low + 1 == len(numbers)
        if fraction is not None or (len(numbers) > MOST_NUMBERS and not counted):
            shown = f", such as {fraction:g}" if fraction is not None else f" from {low:g} to {high:g}"
            rule = f"{target} has {len(numbers):,} numbers{shown}, which are predicted by regression and are no classes"

            raise DataSetUnavailableError(self.file, rule, "make classes of ranges, or write the classes as texts")

    def _weights(self, name: str) -> NDArray[np.float32]:
        """Return a column as weights of the rows [N].

        Raises:
            DataSetUnavailableError: a value is no finite number above 0.
        """
        values = as_numbers(self.table.column(name).combine_chunks())
        if values is None:
            rule = f"the weights in {name} are {self.table.column(name).type}, not numbers"
            raise DataSetUnavailableError(self.file, rule, "choose another column")
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and is refused
            weights = values.astype(np.float32)
        unusable = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
        if len(unusable):
            first = f"{values[unusable[0]]:g} in row {unusable[0] + 1:,}"
            rule = f"{len(unusable):,} weights in {name} are not above 0, first {first}"
            raise DataSetUnavailableError(self.file, rule, "leave these rows out, or give them a finite weight above 0")
        return weights

    def require(self, name: str) -> None:
        """Check that there is a column `name`.

        Raises:
            DataSetUnavailableError: there is none.
        """
        if name not in self.table.column_names:
            rule = f"has no column {name!r}{did_you_mean(name, tuple(self.table.column_names))}"
            raise DataSetUnavailableError(self.file, rule, "check dataset in the search space")

    def _divided(
        self, group: str | None, split: str | None, fractions: tuple[float, float], seed: int
    ) -> Sequence[Indices]:
        if split is not None:
            given = np.array([str(name) for name in self.table.column(split).to_pylist()])
            return splits_of(Path(self.file), self.targets, given, fractions)
        if group is None:
            return stratified_split(self.targets, fractions, seed)
        of = self.table.column(group).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        order = np.random.RandomState(seed).permutation(int(of.max()) + 1)
        passed = np.cumsum(np.bincount(of)[order]) / len(of)
        # Groups in random order fill test, then validation, then training; a part ends when its share of rows is full.
        part = np.empty(len(order), np.int64)
        part[order] = np.searchsorted([fractions[1], fractions[0] + fractions[1]], passed - 1e-9, side="right")
        parts = [np.flatnonzero(part[of] == number).astype(np.int64) for number in (2, 1, 0)]
        if not all(map(len, parts)):
            rule = f"{len(order)} groups of {group} cannot be divided into three splits of these sizes"
            raise DataSetUnavailableError(self.file, rule, "choose other fractions")
        return parts


@dataclass(frozen=True)
class Encoded:
    """The features of a table.

    Attributes:
        rows: numbers and codes of the columns used, float64 [N, columns].
        reader: reader of such rows.
        features: module from `rows` to the networks' inputs [N, D].
        said: description of each column used.
        notes: warnings.
    """

    rows: NDArray[np.float64]
    reader: TableRows
    features: TableFeatures
    said: list[str]
    notes: tuple[str, ...]


def encoded(rows: _Rows, drop: Sequence[str] = ()) -> Encoded:
    """Describe and encode the columns of a table.

    Raises:
        DataSetUnavailableError: a column cannot be a feature, or none is left.
    """
    for name in drop:
        rows.require(name)
    used = [name for name in rows.features if name not in drop]
    if not used:
        raise DataSetUnavailableError(rows.file, "has no column besides the target", "check drop")
    training, notes = rows.parts[0], list[str]()
    sample = training[:: max(1, len(training) // LOOKED_AT)]
    made: list[tuple[Column, NDArray[np.float64], str]] = []
    for name in used:
        column = rows.table.column(name).combine_chunks()
        values: NDArray[Any] | None = as_numbers(column)
        made.append(_counted(rows.file, name, column, training) if values is None else _number(name, column, values))
        values = as_texts(column) if values is None else values
        assert values is not None
        if gives_away(values[sample], rows.targets[sample], len(rows.classes)):
            notes.append(
                f"{name} alone tells {rows.target} in {len(sample):,} training rows: "
                f"if it numbers the rows, or is known only with {rows.target}, write drop: [{name}]"
            )
    columns, numbers, said = zip(*made, strict=True)
    known = [values[training][np.isfinite(values[training])] for values in numbers]
    means, spreads = (
        [float(getattr(part, name)()) if len(part) else 0.0 for part in known] for name in ("mean", "std")
    )
    unused = tuple(name for name in rows.table.column_names if name not in used)
    features = TableFeatures(columns, means, spreads)
    return Encoded(np.stack(numbers, axis=1), TableRows(columns, unused), features, [*said], tuple(notes))


def _number(name: str, column: Any, numbers: NDArray[np.float64]) -> tuple[Column, NDArray[np.float64], str]:
    """Return a column of numbers or times, its values, and a description."""
    form, missing = form_of(column.type), int((~np.isfinite(numbers)).sum())
    assert form is not None
    word = f"{name} of which {missing:,} are missing" if missing else NUMBER
    return Column(name, form, missing=bool(missing)), numbers, word


def _counted(file: str, name: str, column: Any, training: Indices) -> tuple[Column, NDArray[np.float64], str]:
    """Return a column of texts or booleans with its values in the training rows, its codes, and a description."""
    form, texts = form_of(column.type), as_texts(column)
    if texts is None or form is None:
        raise DataSetUnavailableError(file, f"the column {name} holds {column.type}", f"write drop: [{name}]")
    levels = tuple(sorted(set(texts[training].tolist())))
    if len(levels) > MOST_VALUES:
        rule = f"the column {name} has {len(levels):,} values: it is a text or a key"
        raise DataSetUnavailableError(file, rule, f"write drop: [{name}], or use text_table")
    counted = Column(name, form, levels)
    return counted, counted.codes(texts), f"{name} one of {len(levels)}"


def gives_away(values: NDArray[Any], targets: NDArray[np.int64], classes: int) -> bool:
    """Return whether rows sorted by `values` [N] are grouped by class, except for one row in a hundred.

    In a table sorted by its target, row numbers group rows in this way. In any table, a copy of the target does. Rows
    with equal values count as their most frequent class. Texts have no order: each text must have a single class.

    Example:
        >>> gives_away(np.arange(200.0), np.repeat([0, 1], 100), classes=2)
        True
        >>> gives_away(np.arange(200.0), np.tile([0, 1], 100), classes=2)
        False
    """
    names, code = np.unique(values, return_inverse=True)
    pairs, counts = np.unique(code * classes + targets, return_counts=True)
    by_count = np.lexsort((counts, pairs // classes))
    last = np.flatnonzero(np.diff(pairs[by_count] // classes, append=len(names)))
    largest = by_count[last]
    others = len(code) - int(counts[largest].sum())
    if values.dtype == object:
        return others == 0 and len(names) <= len(code) // 10
    runs = 1 + int((np.diff(pairs[largest] % classes) != 0).sum())
    return runs - classes + others <= len(code) // 100


def _rows_of(given: Mapping[str, Any]) -> _Rows:
    fractions = given["validation_fraction"], given["test_fraction"]
    group, split, weight = (given.get(name) for name in ("group", "split", "weight"))
    return _Rows(given["file"], given["target"], group, split, weight, fractions, given["split_seed"])


def describe_file(options: Mapping[str, Any]) -> str:
    """Return a sentence on the contents of a table's file: rows, classes, splits and features."""
    given = {key: value for key, value in options.items() if key != "name"}
    drop = given.pop("drop", ())
    rows = _rows_of(given)
    counts = np.bincount(rows.targets, minlength=len(rows.classes)).tolist()
    shown = ", ".join(f"{name} {count:,}" for name, count in [*zip(rows.classes, counts, strict=True)][:10])
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in zip(SPLITS, rows.parts, strict=True))
    notes: tuple[str, ...] = ()
    if "text" in given:
        rows.require(given["text"])
        columns = f"texts in {given['text']}"
    else:
        found = encoded(rows, drop)
        said, notes = found.said, found.notes
        numbers, others = said.count(NUMBER), [word for word in said if word != NUMBER]
        listed = ", ".join([f"{numbers} {NUMBER}"] * (numbers > 0) + others[:12] + ["…"] * (len(others) > 12))
        columns = f"{len(found.features.code)} features of {len(said)} columns ({listed})"
        columns += "".join(f"; without {name!r} ({reason})" for name, reason in rows.left_out.items())
    columns += f"; weights in {given['weight']}" if given.get("weight") else ""
    columns += "".join(f"; warning: {note}" for note in notes)
    return f"{given['file']}: {len(rows.targets):,} rows ({sizes}); {given['target']}: {shown}; {columns}"


SplitSeed = Annotated[int, Hyperparameter(range="[0, inf)", source="our choice")]


@DATASETS.add("table", describe=describe_file)
def load_table(
    file: str,
    target: str,
    drop: Sequence[str] = (),
    group: str | None = None,
    split: str | None = None,
    weight: str | None = None,
    validation_fraction: Fraction = 0.2,
    test_fraction: Fraction = 0.2,
    split_seed: SplitSeed = 0,
) -> DataSet:
    """Your own table in CSV, Parquet or JSON Lines.

    Load a table as features float32 [N, D] and classes [N].

    Args:
        file: CSV, Parquet or JSON Lines.
        target: column of classes.
        drop: columns that are not features.
        group: column of groups; rows with the same value are in the same split.
        split: column of `train`, `val` and `test`.
        weight: column of the rows' weights in the training loss and in weighted metrics, numbers above 0.
        validation_fraction: share of the rows for validation, if `split` is not given.
        test_fraction: share of the rows for testing, if `split` is not given.
        split_seed: seed of the division.

    Raises:
        DataSetUnavailableError: the file is missing or broken, or a column is unusable.
    """
    rows = _Rows(file, target, group, split, weight, (validation_fraction, test_fraction), split_seed)
    made = encoded(rows, drop)
    transform = Transform(made.features, torch.from_numpy(made.rows[rows.parts[2]]), made.reader)
    facts: dict[str, Any] = {"class_names": rows.classes, "notes": made.notes, "transform": transform}
    divisible = made.features.of_table(made.rows), rows.targets, rows.parts, len(rows.classes)
    return divided("table", *divisible, weights=rows.weights, **facts)


def tokenized(texts: Sequence[str], folder: str, length: int, column: str) -> tuple[NDArray[np.int32], TokenizerIds]:
    """Return token ids [N, L] of the tokenizer in a folder, padded to the longest text, and a reader of such texts.

    Raises:
        DataSetUnavailableError: the folder, its pad token or the package is missing.
    """
    try:
        place = existing_folder(folder, "tokenizer.json", "tokenizer_config.json")
        required_library()
        reader = TokenizerIds(length, 0, column, str(place))
        ids = reader.tokens(texts)
    except (ValueError, OSError) as error:
        raise DataSetUnavailableError(folder, str(error).splitlines()[0], "check dataset.tokenizer") from error
    return ids, replace(reader, length=ids.shape[1], vocabulary=len(reader.tokenizer))


@DATASETS.add("text_table", describe=describe_file)
def load_text_table(
    file: str,
    target: str,
    text: str,
    vocabulary: Annotated[int, "[2, inf)"] = 20_000,
    length: Annotated[int, "[1, inf)"] = 200,
    tokenizer: str | None = None,
    group: str | None = None,
    split: str | None = None,
    weight: str | None = None,
    validation_fraction: Fraction = 0.2,
    test_fraction: Fraction = 0.2,
    split_seed: SplitSeed = 0,
) -> DataSet:
    """A column of texts of your own table.

    Load a column of texts as token ids int32 [N, length], with words split as Keras' Tokenizer does.

    Args:
        file, target, group, split, weight, validation_fraction, test_fraction, split_seed: as in `load_table`.
        text: column of texts.
        vocabulary: number of token ids: one for padding, and one for each of the most frequent words of training texts
            [as newsgroups20].
        length: number of words kept at the end of each text [our choice].
        tokenizer: folder of a Hugging Face tokenizer to use instead of words; the first `length` tokens are kept.
    """
    rows = _Rows(file, target, group, split, weight, (validation_fraction, test_fraction), split_seed)
    rows.require(text)
    written = [str(value or "") for value in rows.table.column(text).to_pylist()]
    reader: WordIds | TokenizerIds
    if tokenizer is None:
        words = frequent_words((words_of(written[row]) for row in rows.parts[0]), vocabulary - 1)
        reader = WordIds(length, vocabulary, text, tuple(words))
        inputs = reader.ids(written)
    else:
        inputs, reader = tokenized(written, tokenizer, length, text)
    facts: dict[str, Any] = {
        "class_names": rows.classes,
        "vocabulary": reader.vocabulary,
        "transform": Transform(reader=reader),
    }
    return divided("text_table", inputs, rows.targets, rows.parts, len(rows.classes), weights=rows.weights, **facts)

"""Read and check a table of predictions that were made elsewhere.

Each row is a sample with `split`, `target`, and `logits` or `probabilities`; optional columns are `seed` (a replicate),
`epoch`, and `sample` (the position in the split; by default the order of rows). Every other column is a hyperparameter,
with or without the prefix `config_`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.execution.prediction_tables import predictions_table
from sweeper.space.catalogue import installed_registries
from sweeper.space.components import WORD
from trainables.datasets.base import hash_of_splits
from trainables.metrics.base import are_probabilities
from trainables.registry import IMPORTED, OWN, SPLITS, Registry
from trainables.training.evaluation import FITTED_ON
from trainables.training.own_loop import LOGITS, PARTS, PROBABILITIES

REQUIRED = ("split", "target")
#: Optional columns and their defaults.
OPTIONAL = {"seed": 0, "epoch": 1}

SAMPLE = "sample"
KNOWN = (*REQUIRED, *OPTIONAL, SAMPLE, LOGITS, PROBABILITIES)

_IS = pa.types
NUMBERS = (_IS.is_integer, _IS.is_floating)
TEXTS = (_IS.is_string, _IS.is_large_string)
#: Types of columns that can be hyperparameters.
PLAIN = (*NUMBERS, *TEXTS, _IS.is_boolean, _IS.is_null)

#: Columns to rename, because a search space uses the name for something else.
RESERVED = {"dataset": "own_dataset"}

#: Post-hoc methods that are compared, of many classes and of two. If there are many runs, only the first, since the
#: others take seconds each.
METHODS, OF_TWO_CLASSES = ["temperature", "vector", "isotonic"], ["temperature", "beta", "isotonic"]

#: Further metrics for data with two classes: those of the probability of class 1.
BINARY = ["ece_positive", "calibration_slope", "calibration_intercept"]

#: Most faults of one kind that are reported: one wrong column makes every row faulty.
MOST_FAULTS = 5

Values = dict[str, Any]
Rows = NDArray[np.int64]
Place = tuple[int, int, int]


class _Faults:
    """The faults of a file, collected to be raised together."""

    def __init__(self, file: Path) -> None:
        self.file, self.faults = file, list[Fault]()

    def add(self, rule: str, remedy: str) -> None:
        """Add a rule that the file breaks."""
        self.faults.append(Fault("", rule, remedy))

    def add_some(self, rules: Iterable[str], remedy: str) -> None:
        """Add the first few of many similar faults."""
        for rule in islice(rules, MOST_FAULTS):
            self.add(rule, remedy)

    def raise_any(self) -> None:
        """Raise InvalidSearchSpace if there are faults."""
        if self.faults:
            raise InvalidSearchSpace(self.faults, str(self.file))


@dataclass(frozen=True)
class Predictions:
    """The contents of a file of predictions.

    Attributes:
        configurations: values of the configurations, nested as in a search space.
        seeds, epochs, splits: those in the file, in order; `val` is the first split.
        logits: logits of all samples, float32 [N, K].
        targets: class indices of all samples, int64 [N].
        rows: configuration, seed and epoch → split → its rows.
        notes: assumptions about something that the file does not say, one sentence each.
    """

    configurations: Sequence[Values]
    seeds: Sequence[int]
    epochs: Sequence[int]
    splits: Sequence[str]
    logits: NDArray[np.float32]
    targets: NDArray[np.int64]
    rows: Mapping[Place, Mapping[str, Rows]]
    notes: Sequence[str] = ()

    def space(self) -> Values:
        """Return a search space that contains the configurations."""
        parts = {part: own for part in PARTS if (own := [c[part] for c in self.configurations])[0] != {"name": OWN}}
        rest = [{key: value for key, value in c.items() if key not in PARTS} for c in self.configurations]
        named = {}
        for part, values in parts.items():
            names = dict.fromkeys(value["name"] for value in values)
            options = [_choices([value for value in values if value["name"] == name]) for name in names]
            named[part] = {"one_of": options} if len(options) > 1 else options[0]
        binary = self.logits.shape[1] == 2
        return {
            "loop": IMPORTED,
            "scheduler": {"name": "none", "max_epochs": self.epochs[-1]},
            "samples": len(self.configurations),
            "replicates": {"count": len(self.seeds), "seeds": [*self.seeds]},
            "evaluation": {
                "curvature": False,
                "splits": [*self.splits],
                "posthoc": (OF_TWO_CLASSES if binary else METHODS)[: None if len(self.rows) == 1 else 1],
                "metrics": BINARY if binary else [],
            },
            "space": {**named, **_choices(rest)},
        }

    def facts(self) -> Values:
        """Return the manifest's facts about the data: samples per split, classes, and the hash of the splits."""
        first = next(iter(self.rows.values()))
        sizes = dict.fromkeys(SPLITS, 0) | {name: len(own) for name, own in first.items()}
        digest = hash_of_splits(*(self.targets[first.get(name, ())] for name in SPLITS))
        return {"samples": sizes, "classes": self.logits.shape[1], "split_hash": digest}


def read_predictions(file: Path, labels: Path | None = None, *, cross_fit: bool = False) -> Predictions:
    """Read a file of predictions, see `sweeper.execution.prediction_tables.predictions_table` for the arguments.

    Raises:
        SweeperError: the file lacks something or has invalid values (all faults at once).
    """
    faults = _Faults(file)
    table, notes = _table(file, labels, cross_fit, faults)
    own = [name for name in table.column_names if name not in KNOWN]
    _check_names(table, own, faults)
    logits = _logits(table, faults)
    targets = _whole_numbers(table, "target", 0, None if logits is None else logits.shape[1] - 1, faults)
    for name, least in zip(OPTIONAL, (0, 1), strict=True):
        numbers = pa.array(_whole_numbers(table, name, least, None, faults))
        table = table.set_column(table.column_names.index(name), name, numbers)
    _check_splits(table, faults)
    faults.raise_any()  # the next checks compare runs and need valid columns
    assert logits is not None, "without them there is a fault"
    configurations, rows = _runs(table, own)
    samples = table[SAMPLE].to_numpy() if SAMPLE in table.column_names else None
    _check_runs(configurations, rows, logits, targets, samples, faults)
    faults.raise_any()
    splits = sorted(next(iter(rows.values())), key=lambda name: (name != FITTED_ON, name))
    seeds, epochs = (sorted({at[place] for at in rows}) for place in (1, 2))
    return Predictions(_nested(configurations), seeds, epochs, splits, logits, targets, rows, notes)


def _table(file: Path, labels: Path | None, cross_fit: bool, faults: _Faults) -> tuple[pa.Table, list[str]]:
    """Return every column of the file that can be read, in the samples' order, and the assumptions made."""
    try:
        for path in filter(None, (file, labels)):
            if not path.is_file():
                raise FileNotFoundError(f"there is no file {path}")
        names = pq.read_schema(file).names if file.suffix == ".parquet" else []
        for name in [name for name, count in Counter(names).items() if count > 1]:
            faults.add(f"has several columns called {name!r}", "give each column its own name")
        faults.raise_any()
        table, notes = predictions_table(file, labels, cross_fit=cross_fit)
        columns = {name: _decoded(table.column(number)) for number, name in enumerate(table.column_names)}
    except (OSError, pa.ArrowException, ValueError, BadZipFile) as error:
        raise SweeperError(f"{file} cannot be read: {(str(error).splitlines() or [''])[0]}") from error
    given = [name for name in (LOGITS, PROBABILITIES) if name in columns]
    needed = f"it needs {', '.join(REQUIRED)} and {LOGITS} or {PROBABILITIES}; a row is a sample"
    for name in [*REQUIRED, *([] if given else [f"{LOGITS} or {PROBABILITIES}"])]:
        if name not in columns:
            faults.add(f"has no column {name}", needed)
    if len(given) == 2:
        faults.add(f"has both {LOGITS} and {PROBABILITIES}", "leave one out")
    if not len(table):
        faults.add("has no rows", "a row is a sample")
    own = columns.get(SAMPLE)
    if own is not None and (own.null_count or not _is(own.type, _IS.is_integer, *TEXTS)):
        rule = f"{SAMPLE} holds {own.type}{', some missing' if own.null_count else ''}"
        faults.add(rule, "give each sample a whole number or a text")
    faults.raise_any()
    columns |= {name: pa.array(np.full(len(table), usual)) for name, usual in OPTIONAL.items() if name not in columns}
    whole = pa.table(columns)
    return whole.sort_by(SAMPLE) if SAMPLE in columns else whole, notes


def _decoded(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece, without dictionary or extension type."""
    array = column.combine_chunks()
    array = array.storage if isinstance(array.type, pa.ExtensionType) else array
    return array.dictionary_decode() if _IS.is_dictionary(array.type) else array


def _is(kind: pa.DataType, *kinds: Callable[[pa.DataType], bool]) -> bool:
    return any(is_kind(kind) for is_kind in kinds)


def _check_names(table: pa.Table, own: Sequence[str], faults: _Faults) -> None:
    """Add a fault for each of the file's `own` columns that cannot be a hyperparameter."""
    for name in own:
        kind = table.schema.field(name).type
        if not _is(kind, *PLAIN) or not WORD.fullmatch(name.removeprefix("config_")):
            remedy = "give numbers, texts or true and false, under lower-case letters, digits and _"
            faults.add(f"the column {name!r} of {faults.file.name} ({kind}) is no hyperparameter", remedy)
        elif _is(kind, _IS.is_floating) and pc.any(pc.is_inf(table[name])).as_py():
            faults.add(f"the column {name!r} holds infinite numbers", "leave it out, or write these as missing")
    for name, count in Counter(name.removeprefix("config_") for name in own).items():
        if count > 1 or name in KNOWN:
            faults.add(f"the columns {name} and config_{name} are one hyperparameter", "leave one out")


def _logits(table: pa.Table, faults: _Faults) -> NDArray[np.float32] | None:
    """Return logits [N, K], or the logarithms of given probabilities; `None` after adding a fault."""
    name = LOGITS if LOGITS in table.column_names else PROBABILITIES
    column = table[name].combine_chunks()
    kind, rule = column.type, ""
    if _is(kind, _IS.is_list, _IS.is_large_list, _IS.is_fixed_size_list) and _is(kind.value_type, *NUMBERS):
        flat, sizes = pc.list_flatten(column), pc.unique(pc.list_value_length(column)).to_pylist()
        if missing := column.null_count or flat.null_count:
            rule = f"{missing:,} {name} of {faults.file.name} are missing"
        elif len(sizes) != 1 or sizes[0] < 2:
            rule = f"rows of {faults.file.name} have {', '.join(map(str, sorted(sizes)[:4]))} {name}"
    else:
        rule = f"{name} of {faults.file.name} have the type {kind}"
    if rule:
        faults.add(rule, f"give each row's {name} as a list of numbers, one per class, of equal length in all rows")
        return None
    values = flat.cast(pa.float64(), safe=False).to_numpy().reshape(-1, sizes[0])
    known = values[~np.isnan(values).any(axis=1)]  # NaN marks a seed that diverged, which is allowed
    sound = are_probabilities(known)
    if name == LOGITS and sound:
        faults.add(f"rows of {name} are probabilities, each sums to 1", f"rename the column to {PROBABILITIES}")
    elif name == PROBABILITIES and len(known) and not sound:
        worst = known[np.argmax((known < 0).any(axis=1) + np.abs(known.sum(axis=1) - 1))]
        shown = ", ".join(f"{value:.3g}" for value in worst[:MOST_FAULTS])
        faults.add(f"{name} of a row are {shown}", "none is negative, and each row sums to 1")
    # log 0 = −∞ and values beyond float32 are kept; the evaluation reports them as not finite.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        logits = np.log(values) if name == PROBABILITIES else values
        return np.asarray(logits.astype(np.float32))


def _whole_numbers(table: pa.Table, name: str, least: int, most: int | None, faults: _Faults) -> NDArray[np.int64]:
    """Return a column as int64 [N]; zeros after adding a fault for values that are not integers or out of range."""
    column, nothing = table[name].combine_chunks(), np.zeros(len(table), np.int64)
    allowed = f"whole numbers from {least}" + (f" to {most}" if most is not None else "")
    column = column.cast(pa.int8()) if _IS.is_boolean(column.type) else column  # labels that are true and false
    if not _is(column.type, *NUMBERS):
        faults.add(f"{name} holds {column.type}", f"give {allowed}")
        return nothing
    if missing := pc.sum(pc.is_null(column, nan_is_null=True)).as_py():
        faults.add(f"{missing:,} rows have no {name}", f"give {allowed}")
        return nothing
    values = column.to_numpy(zero_copy_only=False)
    # Refuse 2**63, too: int64's largest value rounds up to it as a float, and would overflow in the cast.
    top = np.iinfo(np.int64).max if most is None else most
    wrong = (values != np.floor(values)) | (values < least) | (values > top) | (values >= 2.0**63)
    if wrong.any():
        shown = f"{name} is {values[wrong][0]} in a row"
        faults.add(f"{shown}; {int(wrong.sum()):,} of {len(values):,} rows are not allowed", f"give {allowed}")
        return nothing
    return np.asarray(values.astype(np.int64))


def _check_splits(table: pa.Table, faults: _Faults) -> None:
    column = table["split"]
    if not _is(column.type, *TEXTS) or column.null_count:
        said = f"holds {column.type}" if not column.null_count else f"is missing in {column.null_count:,} rows"
        faults.add(f"split {said}", f"give texts: {FITTED_ON}, test and others")
        return
    names = pc.unique(column).to_pylist()
    odd = (f"split is {name[:40]!r}" for name in names if not WORD.fullmatch(name))
    faults.add_some(odd, "names of splits are lower-case letters, digits and _")
    if FITTED_ON not in names:
        shown = ", ".join(repr(name[:40]) for name in names[:MOST_FAULTS])
        faults.add(
            f"has no split {FITTED_ON}: it has {shown}", "post-hoc methods are fitted on it; add its predictions"
        )


def _runs(table: pa.Table, own: Sequence[str]) -> tuple[list[Values], dict[Place, dict[str, Rows]]]:
    """Return the configurations, and (configuration, seed, epoch) → split → sorted row indices."""
    keys = [*own, *OPTIONAL, "split"]
    numbered = table.select(keys).append_column("row", pa.array(np.arange(len(table))))
    # Without threads, groups appear in the file's order, so configurations are numbered as the user wrote them.
    grouped = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    configurations, rows, numbers = list[Values](), dict[Place, dict[str, Rows]](), dict[str, int]()
    for key, places in zip(grouped.select(keys).to_pylist(), grouped["row_list"], strict=True):
        # Missing values and NaN (unequal to itself) mean that the configuration lacks the hyperparameter.
        flat = {n.removeprefix("config_"): key[n] for n in own if key[n] is not None and key[n] == key[n]}
        number = numbers.setdefault(repr(flat), len(numbers))
        configurations += [flat] if number == len(configurations) else []
        at = rows.setdefault((number, key["seed"], key["epoch"]), {})
        both = [at.get(key["split"], np.empty(0, np.int64)), places.values.to_numpy()]
        at[key["split"]] = np.sort(np.concatenate(both))
    return configurations, rows


def _check_runs(
    configurations: Sequence[Values],
    rows: Mapping[Place, Mapping[str, Rows]],
    logits: NDArray[np.float32],
    targets: NDArray[np.int64],
    samples: NDArray[np.generic] | None,
    faults: _Faults,
) -> None:
    """Add faults for runs that lack an epoch or split that others have, repeat samples, or have other samples."""

    def run(at: Place) -> str:
        values = ", ".join(f"{key} = {value}" for key, value in [*configurations[at[0]].items()][:MOST_FAULTS])
        return f"configuration {at[0]}{f' ({values})' if values else ''} with seed {at[1]}"

    held = [(at, split, own) for at, by_split in rows.items() for split, own in by_split.items()]
    epochs, splits = sorted({at[2] for at, *_ in held}), sorted({split for _, split, _ in held})
    wanted = [(index, seed, epoch) for index, seed in dict.fromkeys(at[:2] for at in rows) for epoch in epochs]
    lacking = ((at, split) for at in wanted for split in splits if split not in rows.get(at, ()))
    faults.add_some(
        (f"{run(at)} lacks split {split} at epoch {at[2]}, which others have" for at, split in lacking),
        "leave out what not all have; without the column epoch, all are compared at their ends",
    )
    twice = (
        (at, split)
        for at, split, own in held
        if (_repeats(targets[own]) if samples is None else len(np.unique(samples[own])) < len(own))
    )
    faults.add_some(
        (f"a sample of split {split} occurs twice with the same seed, epoch and hyperparameters: {run(at)}"
         for at, split in twice),
        "give each run a seed, or a column that tells them apart",
    )  # fmt: skip
    odd = ((at, split) for at, split, own in held if are_probabilities(logits[own]))
    rules = (f"{run(at)} has probabilities instead of logits of {split}" for at, split in odd)
    faults.add_some(rules, "give the logarithms of all of them, or all as probabilities")
    for split in splits:
        _check_samples({at: _digest(targets, samples, own) for at, of, own in held if of == split}, split, run, faults)


def _check_samples(held: Mapping[Place, bytes], split: str, run: Callable[[Place], str], faults: _Faults) -> None:
    """Add faults for runs whose samples of a split differ from those of most runs, or of the first run in a tie."""
    (usual, count), *others = Counter(held.values()).most_common()
    if not others:
        return
    first = next(iter(held))
    most = count > others[0][1]
    than, expected = ("most", usual) if most else (f"{run(first)} at epoch {first[2]}", held[first])
    faults.add_some(
        (f"{run(at)} at epoch {at[2]} has other targets of {split} than {than}" for at in held if held[at] != expected),
        f"write all in one order, or a column {SAMPLE}; what differs between samples is no hyperparameter",
    )


def _digest(targets: NDArray[np.int64], samples: NDArray[np.generic] | None, own: Rows) -> bytes:
    """Return a value that is equal for runs with the same samples in the same order."""
    return targets[own].tobytes() + (b"" if samples is None else repr(samples[own].tolist()).encode())


def _repeats(targets: NDArray[np.int64]) -> bool:
    """Return whether targets [N] repeat one run's targets several times; alternating classes do not count."""
    # Without sample ids, this is the only sign of an omitted seed column. More than 20 repetitions are not searched.
    for times in range(2, 21):
        length, rest = divmod(len(targets), times)
        period = targets[:length]
        if not rest and length > 2 * len(np.unique(period)) and (targets == np.tile(period, times)).all():
            return not any((period == np.roll(period, by)).all() for by in range(1, length) if length % by == 0)
    return False


def _nested(flat: Sequence[Values]) -> list[Values]:
    """Return configurations with `loss`, `architecture` and `optimizer` nested as in a search space.

    If `loss` (or `loss_name`) names a built-in loss and `loss_gamma` is valid for it, they become its name and setting;
    otherwise they are renamed to `own_loss` and `own_loss_gamma`.
    """
    registries = installed_registries().space
    nested = [{RESERVED.get(key, key): value for key, value in values.items()} for values in flat]
    for part in PARTS:

        def of_part(key: str, part: str = part) -> bool:
            return key.partition("_")[0] == part

        parts = [{key[len(part) + 1 :] or "name": v.pop(key) for key in [*filter(of_part, v)]} for v in nested]
        # Nest all rows or none: one column must not mean a built-in loss in some rows and a custom loss in others.
        known = all(_is_known(registries[part], own) for own in parts)
        for values, own in zip(nested, parts, strict=True):
            values[part] = own if known else {"name": OWN}
            if not known:
                values |= {f"own_{part}_{key}".removesuffix("_name"): value for key, value in own.items()}
    return nested


def _is_known(registry: Registry, named: Values) -> bool:
    name = named.get("name")
    if not isinstance(name, str) or registry.is_own(name):
        return False
    return not registry[name].faults({key: value for key, value in named.items() if key != "name"})


def _choices(rows: Sequence[Values]) -> Values:
    """Return each key's value if all rows share it, else a choice of its values."""
    keys = dict.fromkeys(key for row in rows for key in row)
    seen = {key: [*dict.fromkeys(row[key] for row in rows if key in row)] for key in keys}
    return {
        key: values[0] if len(values) == 1 and all(key in row for row in rows) else {"choice": values}
        for key, values in seen.items()
    }

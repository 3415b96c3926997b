"""A Parquet file of predictions that were made elsewhere becomes a sweep.

A row is a sample: `split`, `target`, `logits`, and where there are several, `seed` (a replicate), `epoch`, and `sample`
(its place in the split; else rows are in order). Every other column is a hyperparameter, with `config_` before its name
or without. What it predicts is measured as that of a training loop of the user's own, and reported to a driver that
judges, journals and writes tables as ever: so whatever reads a sweep reads this one, too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from sweeper.core.errors import SweeperError
from sweeper.core.ids import trial_name
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Executor, Job, Session
from sweeper.execution.options import Outcome, RunOptions
from sweeper.execution.runner import first_attempt
from sweeper.planning.user_code_checks import MANIFEST_KEY, predicted_before
from sweeper.space.catalogue import installed_registries
from sweeper.space.components import WORD
from sweeper.space.configurations import Configurations
from sweeper.space.loading import load_spec
from sweeper.storage.metadata import build_manifest
from sweeper.storage.places import DRIVING, place_of
from sweeper.storage.sweeps import create_sweep
from trainables.datasets.base import hash_of_splits
from trainables.registry import IMPORTED, OWN, SPLITS
from trainables.training.evaluation import END, FITTED_ON
from trainables.training.lanes.packing import SEQUENTIAL
from trainables.training.own_loop import PARTS, LoopError, LoopReplicate, own_data
from trainables.worker.checkpoints import TrialFiles
from trainables.worker.trial_reports import NON_FINITE, TrialReport, mean_objective
from trainables.worker.trial_settings import TrialSettings
from trainables.worker.trial_tables import evaluation_rows, write_evaluations

REQUIRED = ("split", "target", "logits")
#: Columns that may be absent, and what stands for them then.
OPTIONAL = {"seed": 0, "epoch": 1}

SAMPLE = "sample"

_IS = pa.types
#: What hyperparameters can be.
PLAIN = (_IS.is_integer, _IS.is_floating, _IS.is_boolean, _IS.is_string, _IS.is_large_string, _IS.is_null)

Values = dict[str, Any]
Rows = NDArray[np.int64]
Place = tuple[int, int, int]


@dataclass(frozen=True)
class Predictions:
    """What a file holds.

    Attributes:
        configurations: their values, nested as a search space's.
        seeds, epochs, splits: those that there are, in order; `val` is the first split.
        logits: of all samples, float32 [N, K].
        targets: int64 [N].
        rows: configuration, seed and epoch → split → its rows.
    """

    configurations: Sequence[Values]
    seeds: Sequence[int]
    epochs: Sequence[int]
    splits: Sequence[str]
    logits: NDArray[np.float32]
    targets: NDArray[np.int64]
    rows: Mapping[Place, Mapping[str, Rows]]

    def space(self) -> Values:
        """Return a search space whose configurations can be these."""
        parts = {part: each for part in PARTS if (each := [c[part] for c in self.configurations])[0] != {"name": OWN}}
        rest = [{key: value for key, value in c.items() if key not in PARTS} for c in self.configurations]
        named = {}
        for part, values in parts.items():
            names = dict.fromkeys(each["name"] for each in values)
            options = [_choices([each for each in values if each["name"] == name]) for name in names]
            named[part] = {"one_of": options} if len(options) > 1 else options[0]
        return {
            "loop": IMPORTED,
            "scheduler": {"name": "none", "max_epochs": self.epochs[-1]},
            "samples": len(self.configurations),
            "replicates": {"count": len(self.seeds), "seeds": [*self.seeds]},
            "evaluation": {"curvature": False, "posthoc": ["temperature"], "splits": [*self.splits]},
            "space": {**named, **_choices(rest)},
        }

    def facts(self) -> Values:
        """Return what a manifest says of the data."""
        first = next(iter(self.rows.values()))
        sizes = dict.fromkeys(SPLITS, 0) | {name: len(own) for name, own in first.items()}
        digest = hash_of_splits(*(self.targets[first.get(name, ())] for name in SPLITS))
        return {"samples": sizes, "classes": self.logits.shape[1], "split_hash": digest}

    def reports(self, index: int, settings: TrialSettings) -> Iterator[TrialReport]:
        """Yield a configuration's reports, an epoch each, their tables written before."""
        trial, last = trial_name(index), self.epochs[-1]
        files = TrialFiles(Path(trial), tables=settings.tables, checkpoints=None, store=settings.store)
        there = {seed for number, seed, _ in self.rows if number == index}
        errors = {n: f"the file has no seed {seed}" for n, seed in enumerate(self.seeds) if seed not in there}
        for epoch in self.epochs:
            rows, found = [], {}
            for number, seed in enumerate(self.seeds):
                if number in errors:
                    continue
                replicate = self._replicate(index, seed, epoch, settings)
                if replicate is None:
                    errors[number] = f"logits of seed {seed} are not finite in epoch {epoch}"
                    continue
                rows.append({"replicate": number, **replicate.train_epoch(), "seconds": 0.0})
                found[number] = replicate.evaluate(settings.evaluation, END if epoch == last else "rung")
            write_evaluations(files, trial, epoch, found)
            evaluations, failure = evaluation_rows(found, epoch), None if found else [*errors.values()][-1]
            objective = mean_objective(settings.objective, rows, evaluations) if found else math.nan
            yield TrialReport(
                configuration=index, epoch=epoch, objective=objective, failure=failure,
                failure_kind=NON_FINITE if failure else None, device="cpu", packing=SEQUENTIAL, wall_seconds=0.0,
                epochs=rows, evaluations=evaluations, replicate_errors=dict(errors),
            )  # fmt: skip
            if failure is not None:
                return

    def _replicate(self, index: int, seed: int, epoch: int, settings: TrialSettings) -> LoopReplicate | None:
        """Return a replicate about to end an epoch; `None` where its logits are not finite."""
        stored = {name: (self.logits[own], self.targets[own]) for name, own in self.rows[index, seed, epoch].items()}
        if not all(np.isfinite(logits).all() for logits, _ in stored.values()):
            return None
        values, bins = self.configurations[index], settings.evaluation.bins
        replicate = LoopReplicate(IMPORTED, values, seed=seed, dataset=own_data(), max_epochs=epoch, bins=bins)
        replicate.epoch = epoch - 1
        replicate.loop.predictions = {name: tuple(map(torch.from_numpy, pair)) for name, pair in stored.items()}
        return replicate


class _FromFile(Executor):
    """Reports what a file holds where trials would run."""

    name = "file"

    def __init__(self, predictions: Predictions) -> None:
        self._predictions = predictions

    @contextmanager
    def session(self, job: Job) -> Iterator[Session]:
        resources = {"cpu": 1.0, "gpu": 0.0}
        settings = TrialSettings.from_mapping(job.settings(resources))

        def execute(driver: Driver) -> None:
            for index in range(len(self._predictions.configurations)):
                if driver.closing is None:
                    driver.take_over(index, self._predictions.reports(index, settings))

        yield Session(resources, 1, execute)


def import_predictions(file: Path, overrides: Sequence[str], name: str | None, options: RunOptions) -> Outcome:
    """Make a sweep of a file's predictions.

    Args:
        file: see the module's docstring.
        overrides: `key=value` of the search space that is made for it, such as `evaluation.posthoc=[…]`.
        name: of the sweep; by default the file's, numbered.
        options: of a run.

    Raises:
        SweeperError: what the file lacks, or what is wrong in it.
    """
    found = read_predictions(file)
    spec = load_spec(found.space(), overrides)
    place = place_of(options.output, DRIVING)
    if place.store is not None:
        place.store.check()
    manifest = {
        **build_manifest(spec, found.facts()),
        MANIFEST_KEY: {"columns": []},
        "imported": {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
    }
    sweep = create_sweep(spec, file.stem, name, place.folder, manifest, place.has)
    own = Configurations(len(found.configurations), found.configurations.__getitem__, sweep.paths.journal)
    try:
        dataset = predicted_before(manifest)
        return first_attempt(replace(sweep, configurations=own), dataset, options, place, _FromFile(found))
    except LoopError as error:
        raise SweeperError(f"{file}: {error}") from error


def read_predictions(file: Path) -> Predictions:
    """Read a file of predictions. Raises SweeperError with what it lacks, or what is wrong in it."""
    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise SweeperError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from error
    for name in [each for each in REQUIRED if each not in table.column_names]:
        raise SweeperError(f"{file} has no column {name}", f"it needs {', '.join(REQUIRED)}; a row is a sample")
    for name, usual in OPTIONAL.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.array(np.full(len(table), usual)))
    if SAMPLE in table.column_names:
        table = table.sort_by(SAMPLE)
    logits = _logits(file, table["logits"])
    own = [name for name in table.column_names if name not in (*REQUIRED, *OPTIONAL, SAMPLE)]
    for name in own:
        kind = table.schema.field(name).type
        if pa.types.is_dictionary(kind):
            table = table.set_column(table.column_names.index(name), name, table[name].cast(kind.value_type))
        elif not any(is_kind(kind) for is_kind in PLAIN) or not WORD.fullmatch(name):
            rule = f"the column {name!r} of {file} ({kind}) is no hyperparameter"
            raise SweeperError(rule, "give numbers, texts or true and false, under lower-case letters, digits and _")
    keys, groups = _groups(table, own)
    configurations, rows = list[Values](), dict[Place, dict[str, Rows]]()
    numbers = dict[str, int]()
    for key, places in zip(keys, groups, strict=True):
        flat = {n.removeprefix("config_"): key[n] for n in own if key[n] is not None and key[n] == key[n]}
        number = numbers.setdefault(repr(flat), len(numbers))
        configurations += [flat] if number == len(configurations) else []
        rows.setdefault((number, int(key["seed"]), int(key["epoch"])), {})[str(key["split"])] = places
    targets = table["target"].cast(pa.int64()).to_numpy()
    _require_whole(file, rows, targets)
    splits = sorted(next(iter(rows.values())), key=lambda name: (name != FITTED_ON, name))
    seeds, epochs = (sorted({at[place] for at in rows}) for place in (1, 2))
    return Predictions(_nested(configurations), seeds, epochs, splits, logits, targets, rows)


def _logits(file: Path, column: pa.ChunkedArray) -> NDArray[np.float32]:
    """Return [N, K] of a column of lists."""
    remedy = "a row's logits are a list of numbers, one a class, as many in every row"
    if not hasattr(column.type, "value_type") or column.null_count:
        raise SweeperError(f"logits of {file} are {column.type}{', some missing' if column.null_count else ''}", remedy)
    sizes = pc.unique(pc.list_value_length(column)).to_pylist()
    if len(sizes) != 1 or sizes[0] < 2:
        raise SweeperError(f"rows of {file} have {', '.join(map(str, sorted(sizes)[:4])) or 'no'} logits", remedy)
    flat: NDArray[np.float32] = pc.list_flatten(column).cast(pa.float32()).to_numpy()
    return flat.reshape(-1, sizes[0])


def _groups(table: pa.Table, own: Sequence[str]) -> tuple[list[Values], list[Rows]]:
    """Return the values of hyperparameters, seed, epoch and split that there are, each with its rows, in order."""
    keys = [*own, *OPTIONAL, "split"]
    numbered = table.select(keys).append_column("row", pa.array(np.arange(len(table))))
    grouped = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    places = [np.sort(each.values.to_numpy()) for each in grouped["row_list"]]
    if SAMPLE in table.column_names:
        samples = table[SAMPLE].to_numpy()
        for key, own_rows in zip(grouped.select(keys).to_pylist(), places, strict=True):
            if len(np.unique(samples[own_rows])) != len(own_rows):
                rule = f"a sample of split {key['split']} is there twice with the same seed, epoch and hyperparameters"
                raise SweeperError(rule, "give each run a seed, or a column that tells them apart")
    return grouped.select(keys).to_pylist(), places


def _require_whole(file: Path, rows: Mapping[Place, Mapping[str, Rows]], targets: NDArray[np.int64]) -> None:
    """Raise SweeperError unless every seed of every configuration has the same epochs, splits and targets."""
    first, wanted = next(iter(rows.values())), {(at[2], split) for at, there in rows.items() for split in there}
    if FITTED_ON not in first:
        raise SweeperError(f"{file} has no split {FITTED_ON}", "post-hoc methods are fitted on it; add its predictions")
    for index, seed in {at[:2] for at in rows}:
        where = f"configuration {index} with seed {seed}"
        for epoch, split in sorted(wanted):
            own = rows.get((index, seed, epoch), {}).get(split)
            if own is None:
                remedy = "leave out what not all have; without the column epoch, all are compared at their ends"
                raise SweeperError(f"{where} lacks split {split} at epoch {epoch}, which others have", remedy)
            if not np.array_equal(targets[own], targets[first[split]]):
                remedy = f"write all in one order, or a column {SAMPLE}"
                raise SweeperError(f"{where} has other targets of {split} than the first", remedy)


def _nested(flat: Sequence[Values]) -> list[Values]:
    """Return configurations with `loss`, `architecture` and `optimizer` as a search space has them.

    Columns `loss` (or `loss_name`) and `loss_gamma` are those of this program's loss where they name one and suit it;
    else they are called `own_loss` and `own_loss_gamma`.
    """
    registries, found = installed_registries().space, [dict(each) for each in flat]
    for part in PARTS:

        def of_part(key: str, part: str = part) -> bool:
            return key.partition("_")[0] == part

        parts = [{key[len(part) + 1 :] or "name": v.pop(key) for key in [*filter(of_part, v)]} for v in found]
        known = all(_is_known(registries[part], own) for own in parts)
        for values, own in zip(found, parts, strict=True):
            values[part] = own if known else {"name": OWN}
            if not known:
                values |= {f"own_{part}_{key}".removesuffix("_name"): value for key, value in own.items()}
    return found


def _is_known(registry: Any, named: Values) -> bool:
    name = named.get("name")
    known = not registry.is_own(name)
    return known and not registry[name].faults({key: value for key, value in named.items() if key != "name"})


def _choices(rows: Sequence[Values]) -> Values:
    """Return each key's values: the only one that all have, or a choice."""
    keys = dict.fromkeys(key for row in rows for key in row)
    seen = {key: [*dict.fromkeys(row[key] for row in rows if key in row)] for key in keys}
    return {
        key: values[0] if len(values) == 1 and all(key in row for row in rows) else {"choice": values}
        for key, values in seen.items()
    }

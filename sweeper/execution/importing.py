"""Turn a file of predictions that were made elsewhere into a sweep, see `predictions_file`.

The predictions are measured like those of a user's own training loop, and reported to a driver. The driver judges,
journals and writes tables as for any sweep, so every command that reads sweeps can read this one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.core.ids import trial_name
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Executor, Job, Session
from sweeper.execution.options import Outcome, RunOptions
from sweeper.execution.predictions_file import Predictions, read_predictions
from sweeper.execution.runner import first_attempt
from sweeper.planning.user_code_checks import MANIFEST_KEY, data_stand_in
from sweeper.space.configurations import Configurations
from sweeper.space.evaluation import split_faults
from sweeper.space.loading import load_spec
from sweeper.storage.metadata import build_manifest
from sweeper.storage.places import DRIVING, place_of
from sweeper.storage.sweeps import create_sweep
from sweeper.tracking.choice import manifest_entry
from trainables.metrics.base import bin_faults, finite_logits
from trainables.registry import IMPORTED
from trainables.training.evaluation import END
from trainables.training.lanes.packing import SEQUENTIAL
from trainables.training.own_loop import LoopError, LoopReplicate, own_data
from trainables.worker.checkpoints import TrialFiles
from trainables.worker.trial_reports import NON_FINITE, Failure, TrialReport, mean_objective
from trainables.worker.trial_settings import TrialSettings
from trainables.worker.trial_tables import evaluation_rows, write_evaluations


class _FromFile(Executor):
    """Executor that reports a file's predictions instead of training."""

    name = "file"

    def __init__(self, predictions: Predictions) -> None:
        self._file = predictions

    @contextmanager
    def session(self, job: Job) -> Iterator[Session]:
        resources = {"cpu": 1.0, "gpu": 0.0}
        settings = job.settings(resources)

        def execute(driver: Driver) -> None:
            for index in range(len(self._file.configurations)):
                if driver.closing is None:
                    driver.take_over(index, self._reports(index, settings))

        yield Session(resources, 1, execute)

    def _reports(self, index: int, settings: TrialSettings) -> Iterator[TrialReport]:
        """Yield one report per epoch of a configuration, after writing its tables."""
        trial, last = trial_name(index), self._file.epochs[-1]
        files = TrialFiles(Path(trial), tables=settings.tables, checkpoints=None, store=settings.store)
        present = {seed for number, seed, _ in self._file.rows if number == index}
        seeds = enumerate(self._file.seeds)
        # A missing seed counts as diverged, which no resume retries: there is nothing to train.
        errors = {n: Failure(NON_FINITE, {"missing_seed": seed}) for n, seed in seeds if seed not in present}
        for epoch in self._file.epochs:
            rows, measured = [], {}
            for number, seed in enumerate(self._file.seeds):
                if number in errors:
                    continue
                replicate = self._replicate(index, seed, epoch, settings)
                if replicate is None:
                    errors[number] = Failure(NON_FINITE, {"logits_of_seed": seed, "epoch": epoch})
                    continue
                rows.append({"replicate": number, **replicate.train_epoch(), "seconds": 0.0})
                measured[number] = replicate.evaluate(settings.evaluation, END if epoch == last else "rung")
            write_evaluations(files, trial, epoch, measured)
            evaluations, failure = evaluation_rows(measured, epoch), None if measured else [*errors.values()][-1]
            objective = mean_objective(settings.objective, rows, evaluations) if measured else math.nan
            yield TrialReport(
                configuration=index, epoch=epoch, objective=objective, failure=failure, device="cpu",
                packing=SEQUENTIAL, wall_seconds=0.0, epochs=rows, evaluations=evaluations,
                replicate_errors=dict(errors),
            )  # fmt: skip
            if failure is not None:
                return

    def _replicate(self, index: int, seed: int, epoch: int, settings: TrialSettings) -> LoopReplicate | None:
        """Return a replicate at the end of `epoch`; `None` if its logits are not finite."""
        stored = {
            name: (self._file.logits[own], self._file.targets[own])
            for name, own in self._file.rows[index, seed, epoch].items()
        }
        if not all(np.isfinite(finite_logits(logits)).all() for logits, _ in stored.values()):
            return None
        values, measured = self._file.configurations[index], settings.evaluation
        replicate = LoopReplicate(
            IMPORTED, values, seed=seed, dataset=own_data(), max_epochs=epoch, evaluation=measured
        )
        replicate.epoch = epoch - 1  # `train_epoch` adds one
        replicate.loop.predictions = {name: tuple(map(torch.from_numpy, pair)) for name, pair in stored.items()}
        return replicate


def import_predictions(
    file: Path,
    overrides: Sequence[str],
    name: str | None,
    options: RunOptions,
    labels: Path | None = None,
    *,
    cross_fit: bool = False,
) -> Outcome:
    """Create a sweep from a file of predictions.

    Args:
        file: File of predictions; see `predictions_file`.
        overrides: Overrides `key=value` of the generated search space, such as `evaluation.posthoc=[…]`.
        name: Name of the sweep; the file's name, numbered, by default.
        options: Options of the run.
        labels: File of the targets, if they are in another one.
        cross_fit: Take all samples as validation data, on which post-hoc methods are cross-fitted.

    Raises:
        SweeperError: The file lacks columns or has invalid values.
    """
    predictions = read_predictions(file, labels, cross_fit=cross_fit)
    spec = load_spec(predictions.space(), overrides)
    facts = predictions.facts()
    manifest = {
        **build_manifest(spec, facts),
        **manifest_entry(options.tracker, place_of(options.output, DRIVING).folder),
        MANIFEST_KEY: {"columns": []},
        "imported": {"file": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()},
    }
    dataset = data_stand_in(manifest)
    faults = split_faults(spec.evaluation.model_dump(), predictions.splits)
    if not faults:
        fewest = min(size for name, size in facts["samples"].items() if name in predictions.splits)
        faults = [Fault("evaluation.bins", rule) for rule in bin_faults(fewest, spec.evaluation.bins)]
    if faults:
        raise InvalidSearchSpace(faults, str(file))
    place = place_of(options.output, DRIVING)
    if place.store is not None:
        place.store.check()
    sweep = create_sweep(spec, file.stem, name, place.folder, manifest, place.has)
    # Use the file's configurations in its order: drawing from the generated space would give other combinations.
    own = Configurations(len(predictions.configurations), predictions.configurations.__getitem__, sweep.paths.journal)
    try:
        done = first_attempt(replace(sweep, configurations=own), dataset, options, place, _FromFile(predictions))
    except LoopError as error:
        raise SweeperError(f"{file}: {error}") from error
    return replace(done, notes=[*predictions.notes, *done.notes])

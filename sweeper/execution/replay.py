"""Report a file's predictions instead of training: the executor of imported sweeps, now and when one is resumed."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sweeper.core.errors import SweeperError
from sweeper.core.ids import trial_name
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Executor, Job, Session
from sweeper.execution.options import RunOptions
from sweeper.execution.predictions import Predictions
from sweeper.execution.predictions_file import read_predictions
from sweeper.space.configurations import Configurations
from sweeper.storage.sweeps import Sweep
from trainables.metrics.base import finite_logits
from trainables.registry import IMPORTED, Configuration
from trainables.training.evaluation import END
from trainables.training.lanes.packing import SEQUENTIAL
from trainables.training.own_loop import LoopReplicate, own_data
from trainables.worker.checkpoints import TrialFiles
from trainables.worker.trial_reports import NON_FINITE, Failure, TrialReport, mean_objective
from trainables.worker.trial_settings import TrialSettings
from trainables.worker.trial_tables import evaluation_rows, write_evaluations

#: Key of the manifest's entry on the imported file.
SOURCE = "imported"


class FromFile(Executor):
    """Executor that reports a file's predictions instead of training."""

    name = "file"

    def __init__(self, predictions: Callable[[], Predictions]) -> None:
        """Take a function that reads the file, which only a sweep with unfinished trials needs."""
        self._predictions = predictions

    @property
    def _file(self) -> Predictions:
        return self._predictions()

    @contextmanager
    def session(self, job: Job) -> Iterator[Session]:
        """Yield a session that takes over every configuration's reports."""
        resources = {"cpu": 1.0, "gpu": 0.0}
        settings = job.settings(resources)

        def execute(driver: Driver) -> None:
            for index in range(len(self._file.configurations)):
                if driver.closing is None and not driver.work.is_over((index, None)):
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
        rows, weights = self._file.rows[index, seed, epoch], self._file.weights
        stored = {name: (self._file.logits[own], self._file.targets[own]) for name, own in rows.items()}
        if not all(np.isfinite(finite_logits(logits)).all() for logits, _ in stored.values()):
            return None
        values, measured = self._file.configurations[index], settings.evaluation
        replicate = LoopReplicate(
            IMPORTED, values, seed=seed, dataset=own_data(), max_epochs=epoch, evaluation=measured
        )
        replicate.epoch = epoch - 1  # `train_epoch` adds one
        replicate.loop.predictions = {name: tuple(map(torch.from_numpy, pair)) for name, pair in stored.items()}
        if weights is not None:
            replicate.loop.weights = {name: torch.from_numpy(weights[own]) for name, own in rows.items()}
        return replicate


def source_of(file: Path, labels: Path | None, cross_fit: bool) -> dict[str, Any]:
    """Return the manifest's entry on the files, from which an interrupted import continues."""
    place = None if labels is None else str(labels.resolve())
    own = {"file": file.name, "path": str(file.resolve()), "labels": place, "cross_fit": cross_fit}
    return {**own, "sha256": _digest(file, labels)}


def _digest(*files: Path | None) -> str:
    digest = hashlib.sha256()
    for file in filter(None, files):
        for part in sorted(file.iterdir()) if file.is_dir() else [file]:
            digest.update(part.read_bytes() if part.is_file() else b"")
    return digest.hexdigest()


def with_configurations(sweep: Sweep, predictions: Callable[[], Predictions]) -> Sweep:
    """Return a sweep with the file's configurations in its order; drawing would give other combinations."""
    count = len(sweep.configurations)
    own = Configurations(count, lambda index: Configuration(predictions().configurations[index]), sweep.paths.journal)
    return replace(sweep, configurations=own)


def resumed(sweep: Sweep, source: Mapping[str, Any], options: RunOptions) -> tuple[Sweep, Executor]:
    """Return an imported sweep and the executor that continues it from the file in `source`.

    Raises:
        SweeperError: the options require training, which imported predictions do not have.
    """
    if options.replicates is not None or options.failed_too:
        rule = "further seeds" if options.replicates is not None else "failed trials again"
        raise SweeperError(
            f"{sweep.name} has imported predictions, so nothing can train {rule}",
            "write the predictions to the file, and import it under another name",
        )

    @functools.cache
    def predictions() -> Predictions:
        try:
            file, labels = Path(source["path"]), source["labels"] and Path(source["labels"])
            same = _digest(file, labels) == source["sha256"]
        except (OSError, LookupError, TypeError):  # no file, or a damaged manifest
            same = False
        if not same:
            raise SweeperError(
                f"the import of {sweep.name} was interrupted, and its file is gone or has changed",
                f"delete it (`sweeper manage delete {sweep.paths.in_commands}`) and import the file again",
            )
        return read_predictions(file, labels, cross_fit=source["cross_fit"])

    return with_configurations(sweep, predictions), FromFile(predictions)

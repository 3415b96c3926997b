"""Retrain replicates whose weights are gone, and measure how closely their logits equal the sweep's.

Retraining uses the same configuration, seeds, packing and number of threads, in a process like the trial's own, so the
same machine gives the same bits. It writes into a temporary folder; the sweep is not changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sweeper.core.errors import SweeperError
from sweeper.core.ids import configuration_index, trial_name
from sweeper.execution.trial_processes import TrialProcess, fork
from sweeper.exporting.weights import Replicates, kept_weights
from sweeper.journal.reasons import reason_text
from sweeper.journal.state import TrialState
from sweeper.results.predictions import StoredPredictions, predictions_in
from sweeper.space.user_code import kept_archive, own_names
from sweeper.storage.metadata import read_manifest
from sweeper.storage.sweeps import Sweep
from trainables.training.lanes.packing import LANES, cohort_key
from trainables.worker.trial_reports import WorkerCommand, WorkerFailed, WorkerInit, WorkerReport
from trainables.worker.trial_settings import Assignment, TrialSettings
from trainables.worker.trial_tables import part_name

#: Folders of a trial that is retrained.
CHECKPOINTS, TABLES = "checkpoints", "tables"


def retrain(
    sweep: Sweep, trial: str, trained: Replicates, stored: Mapping[int, StoredPredictions], say: Callable[[str], None]
) -> tuple[dict[int, Mapping[str, Tensor]], float]:
    """Retrain replicates; return their weights, and the largest difference of their logits from the stored logits.

    Args:
        sweep: the sweep.
        trial: name of their trial.
        trained: the replicates to train again.
        stored: replicate → its predictions, all of one epoch.
        say: called with lines on the progress.

    Raises:
        SweeperError: training failed, or needs a GPU that this machine lacks.
    """
    epoch = next(iter(stored.values())).epoch
    with tempfile.TemporaryDirectory(prefix="sweeper-again-") as made:
        folder = Path(made)
        for unit, numbers in _units(trained):
            process = fork(WorkerInit(_settings(sweep, trial, unit, epoch, folder), str(folder / "log")))
            try:
                for assignment in _assignments(sweep, trial, unit, numbers):
                    _train(process, assignment, epoch, say)
                process.send(None)
            finally:
                process.kill()  # also after Ctrl-C, because a worker in the middle of an epoch would continue training
        weights = kept_weights(trained, folder / CHECKPOINTS, sweep.spec.scheduler.max_epochs)
        difference = max(_difference(stored[number], folder / TABLES) for number in trained)
        return weights.of(epoch), difference


def _units(trained: Replicates) -> list[tuple[TrialState, list[int]]]:
    """Return the trial and the added seeds that trained replicates, with the replicates of each."""
    units: dict[int, tuple[TrialState, list[int]]] = {}
    for number, unit in trained.items():
        units.setdefault(unit.configuration, (unit, []))[1].append(number)
    return [*units.values()]


def _settings(sweep: Sweep, trial: str, unit: TrialState, epoch: int, folder: Path) -> TrialSettings:
    """Return the settings for retraining: the original settings, but with one evaluation that stores logits.

    Raises:
        SweeperError: the trial was trained on a GPU, and this machine has none.
    """
    spec, device = sweep.spec, unit.device or "cpu"
    # A CPU adds numbers in another order than a GPU, so it would train a different network.
    if device == "cuda" and not torch.cuda.is_available():
        raise SweeperError(f"{trial} was trained on a GPU, and this machine has none", "export on a machine with one")
    return TrialSettings(
        dataset=spec.dataset,
        max_epochs=spec.scheduler.max_epochs,
        rungs=(epoch,),
        objective="train_loss",  # measured after every epoch without an evaluation
        evaluation=replace(
            spec.evaluation.settings, metrics=(), posthoc=(), curvature=None, trajectory=None, bootstrap=0
        ),
        tables=folder / TABLES,
        checkpoints=folder / CHECKPOINTS,
        threads=max(1, int(spec.resources.cpu)),
        device=device,
        packing=unit.packing or spec.replicates.packing,
        lanes=spec.replicates.lane_count,
        training=spec.training.settings,
        hang_seconds=spec.hang_timeout,
        loop=spec.loop,
        extensions=kept_archive(sweep.paths, spec, read_manifest(sweep.paths.manifest)),
        own_names=[name for _, name in own_names(spec)],
    )


def _assignments(sweep: Sweep, trial: str, unit: TrialState, numbers: Sequence[int]) -> list[Assignment]:
    """Return the assignments that retrain replicates of one trial or added seed."""
    values, added = sweep.configuration_of(trial), unit.added
    if added is not None:
        place = trial_name(added.configuration)
        return [Assignment(added.configuration, trial, values, [added.seed], added.replicate, place, final=True)]
    index = configuration_index(trial)
    seeds = sweep.spec.replicate_seeds.of(index)
    # A lane's rounding depends on its neighbours, unless its network is one that trials share lanes with.
    if unit.packing == LANES and cohort_key(values, sweep.spec.training.settings) is None:
        return [Assignment(index, trial, values, seeds)]
    return [Assignment(index, trial, values, [seeds[number]], number) for number in numbers]


def _train(process: TrialProcess, assignment: Assignment, epoch: int, say: Callable[[str], None]) -> None:
    """Train one assignment up to an epoch.

    Raises:
        SweeperError: training failed.
    """
    process.send(WorkerCommand(new=([assignment],)))
    number = assignment.replicate
    name, which = assignment.trial, "" if number is None else f", replicate {number}"
    while True:
        try:
            message: WorkerReport | WorkerFailed = process.connection.recv()
        except (EOFError, ConnectionResetError) as error:  # the process was killed, for example for lack of memory
            raise SweeperError(f"retraining {name} failed: its process ended without an error message") from error
        if isinstance(message, WorkerFailed):
            raise SweeperError(f"retraining {name} failed: {reason_text(message.failure)}")
        ((reports, _),) = message.reports
        last = reports[-1]
        if last.failure:
            raise SweeperError(f"retraining {name} failed: {reason_text(last.failure)}")
        say(f"{name}{which}: epoch {last.epoch} of {epoch}")
        # After a report, the worker waits for the answer whether to continue.
        over = last.epoch >= epoch
        process.send(WorkerCommand(over=(last.configuration,) if over else ()))
        if over:
            return


def _difference(stored: StoredPredictions, tables: Path) -> float:
    """Return the largest difference between the logits of a retrained replicate and the stored logits; 0 if equal."""
    name = part_name(stored.trial, stored.replicate, stored.epoch)
    new = predictions_in(tables / "predictions" / name).logits
    return max(
        # Equality is checked first, because infinite logits would give inf − inf = NaN.
        0.0 if np.array_equal(new[part], old) else float(np.abs(new[part] - old).max())
        for part, old in stored.logits.items()
    )

"""Training a trial again whose weights are gone: same configuration, seeds, packing and threads, in a process like its
own, so that the same machine gives the same bits.

Everything is written into a temporary folder; the sweep stays as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sweeper.analysis.recalibration.predictions import StoredPredictions, predictions_in
from sweeper.core.errors import SweeperError
from sweeper.core.ids import trial_name
from sweeper.execution.local.processes import ForkServer, TrialProcess
from sweeper.journal.state import TrialState
from sweeper.space.user_code import code_settings
from sweeper.storage.metadata import read_manifest
from sweeper.storage.sweeps import Sweep
from trainables.training.lanes.packing import AUTO, FUSED
from trainables.worker.messages import WorkerCommand, WorkerFailed, WorkerInit, WorkerReport
from trainables.worker.trial_tables import part_name

LOG = "log"


@dataclass(frozen=True)
class Again:
    """What training again gave.

    Attributes:
        checkpoints: the folder of all trials' checkpoints, in which this trial's are.
        tables: the folder of its tables.
    """

    checkpoints: Path
    tables: Path

    def difference(self, stored: StoredPredictions) -> float:
        """Return how far the new logits of a replicate lie from the stored ones at most; 0 for equal bits."""
        name = part_name(stored.trial, stored.replicate, stored.epoch)
        new = predictions_in(self.tables / "predictions" / name)
        if all(np.array_equal(new.logits[part], stored.logits[part]) for part in stored.logits):
            return 0.0
        return max(float(np.abs(new.logits[part] - stored.logits[part]).max()) for part in stored.logits)


@contextmanager
def trained_again(
    sweep: Sweep, trial: TrialState, epoch: int, replicates: Sequence[int], say: Callable[[str], None]
) -> Iterator[Again]:
    """Train a trial up to an epoch at which the sweep evaluated it; the files are there within the context.

    Args:
        sweep: whose trial it is.
        trial: where its journal left it.
        epoch: the epoch.
        replicates: which ones; lanes round otherwise than a network alone, so of fused ones all are trained.
        say: takes a line after every report.

    Raises:
        SweeperError: it was trained on a card and none is here, or the training failed.
    """
    device = trial.device or "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise SweeperError(
            f"{trial_name(trial.configuration)} was trained on a GPU, and this machine has none",
            "export on a machine with one",
        )
    with tempfile.TemporaryDirectory(prefix="sweeper-again-") as made:
        folder = Path(made)
        again = Again(folder / "checkpoints", folder / "tables")
        settings = _settings(sweep, trial, epoch, again, device)
        with ForkServer() as server:
            process = server.fork(WorkerInit(settings, str(folder / LOG)))
            try:
                for assignment in _assignments(sweep, trial, replicates):
                    _train(process, assignment, epoch, say)
                process.send(None)
            finally:
                process.kill()
        yield again


def _settings(sweep: Sweep, trial: TrialState, epoch: int, again: Again, device: str) -> dict[str, Any]:
    """Return the trial's settings but for what only measures: one evaluation, which stores the logits."""
    spec = sweep.spec
    lanes = 0 if spec.replicates.lanes == AUTO else spec.replicates.lanes
    return {
        "dataset": spec.dataset,
        "max_epochs": spec.scheduler.max_epochs,
        "rungs": [epoch],
        "objective": "train_loss",
        "evaluation": {"bins": spec.evaluation.bins, "bootstrap": 0, "splits": list(spec.evaluation.splits)},
        "tables": str(again.tables),
        "checkpoints": str(again.checkpoints),
        "threads": max(1, int(spec.resources.cpu)),
        "device": device,
        "workers": spec.resources.workers if device == "cpu" else 1,  # a process here has one card
        "packing": trial.packing or spec.replicates.packing,
        "lanes": lanes,
        "own_lanes": lanes,
        "training": spec.training.model_dump(mode="json"),
        "hang_seconds": spec.hang_timeout,
        **code_settings(sweep.paths, spec, read_manifest(sweep.paths.manifest)),
    }


def _assignments(sweep: Sweep, trial: TrialState, replicates: Sequence[int]) -> list[list[object]]:
    """Return what to train, as `trainables.worker.trial_settings.Assignment` takes it."""
    index = trial.configuration
    values: Mapping[str, Any] = sweep.configurations[index]
    seeds = sweep.spec.replicate_seeds.of(index)
    if trial.packing == FUSED:
        return [[index, trial_name(index), values, seeds]]
    return [[index, trial_name(index), values, [seeds[number]], number] for number in replicates]


def _train(process: TrialProcess, assignment: list[object], epoch: int, say: Callable[[str], None]) -> None:
    """Train one assignment up to the epoch. Raises SweeperError where that fails."""
    process.send(WorkerCommand(new=([assignment],)))
    name, which = assignment[1], f", replicate {assignment[4]}" if len(assignment) > 4 else ""
    while True:
        try:
            said: WorkerReport | WorkerFailed = process.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise SweeperError(f"retraining {name} failed: its process ended without an error message") from error
        if isinstance(said, WorkerFailed):
            raise SweeperError(f"retraining {name} failed: {said.text.splitlines()[-1]}")
        ((reports, _),) = said.reports
        last = reports[-1]
        if last.failure:
            raise SweeperError(f"retraining {name} failed: {last.failure}")
        say(f"{name}{which}: epoch {last.epoch} of {epoch}")
        over = last.epoch >= epoch
        process.send(WorkerCommand(over=(last.configuration,) if over else ()))
        if over:
            return

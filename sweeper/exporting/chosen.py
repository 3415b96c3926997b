"""Choose the networks to export: a trial's weights and stored predictions, from its checkpoint or by retraining it.

Retraining uses the same configuration, seeds, packing and number of threads, in a process like the trial's own, so the
same machine gives the same bits. It writes into a temporary folder; the sweep is not changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.cells import text_of
from sweeper.core.errors import SweeperError
from sweeper.core.ids import configuration_index, trial_name
from sweeper.execution.fork_server import ForkServer, TrialProcess
from sweeper.journal.journal import read_journal
from sweeper.journal.reasons import reason_text
from sweeper.journal.state import TrialState, fold
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.predictions import FITTED_ON, MEASURED_ON, PredictionFiles, StoredPredictions, predictions_in
from sweeper.space.user_code import kept_archive, own_names, take_up_kept
from sweeper.storage.metadata import read_manifest
from sweeper.storage.sweeps import Sweep, open_sweep
from trainables.datasets import DataSetUnavailableError, load_dataset
from trainables.datasets.base import DataSet
from trainables.models import build_for
from trainables.registry import IMPORTED
from trainables.training.fine_tuning import measured_weights
from trainables.training.lanes.packing import FUSED
from trainables.worker.checkpoints import TrialFiles, load_newest_checkpoint, replicate_folder
from trainables.worker.trial_reports import WorkerCommand, WorkerFailed, WorkerInit, WorkerReport
from trainables.worker.trial_settings import Assignment, TrialSettings
from trainables.worker.trial_tables import part_name

#: Nested JSON: settings, or the contents of `model.json`.
Description: TypeAlias = dict[str, Any]


def _settings(sweep: Sweep, trial: TrialState, epoch: int, folder: Path) -> TrialSettings:
    """Return the settings for retraining a trial: the original settings, but with one evaluation that stores logits.

    Raises:
        SweeperError: the trial was trained on a GPU, and this machine has none.
    """
    spec, device = sweep.spec, trial.device or "cpu"
    # A CPU adds numbers in another order than a GPU, so it would train a different network.
    if device == "cuda" and not torch.cuda.is_available():
        raise SweeperError(
            f"{trial_name(trial.configuration)} was trained on a GPU, and this machine has none",
            "export on a machine with one",
        )
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
        packing=trial.packing or spec.replicates.packing,
        lanes=spec.replicates.lane_count,
        own_lanes=spec.replicates.lane_count,
        training=spec.training.settings,
        hang_seconds=spec.hang_timeout,
        loop=spec.loop,
        extensions=kept_archive(sweep.paths, spec, read_manifest(sweep.paths.manifest)),
        own_names=[name for _, name in own_names(spec)],
    )


def _assignments(sweep: Sweep, trial: TrialState, replicates: Sequence[int]) -> list[Assignment]:
    """Return the assignments that retrain the given replicates."""
    index = trial.configuration
    values: Description = sweep.configurations[index]
    seeds = sweep.spec.replicate_seeds.of(index)
    # Lanes round differently from a single network, so fused replicates are again trained together.
    if trial.packing == FUSED:
        return [Assignment(index, trial_name(index), values, seeds)]
    return [Assignment(index, trial_name(index), values, [seeds[number]], number) for number in replicates]


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


#: Folders of a trial that is retrained.
CHECKPOINTS, TABLES = "checkpoints", "tables"

BEST, ALL = "best", "all"


@dataclass(frozen=True)
class TrainedNetwork:
    """One replicate: its network, in evaluation mode on the CPU, and the logits that the sweep stored."""

    network: nn.Module
    stored: StoredPredictions


@dataclass(frozen=True)
class Chosen:
    """The networks to export.

    Attributes:
        sweep, trial, epoch: source of the weights.
        configuration: the trial's loss, architecture and optimizer.
        dataset: the data set that they were trained on.
        networks: one or several replicates.
        again: largest difference between the logits of the retrained network and the stored logits; 0 if all bits are
            equal, `None` if the sweep's own checkpoint was used.
        why: reason for the choice, e.g. `best by validation NLL`; empty if the user named the trial.
    """

    sweep: Sweep
    trial: str
    epoch: int
    configuration: Description
    dataset: DataSet
    networks: list[TrainedNetwork]
    again: float | None = None
    why: str = ""


def chosen_networks(
    name: str,
    output: Path,
    trial: str,
    replicate: str,
    *,
    by: str | None = None,
    store: str | None = None,
    trust: bool = False,
    retrain: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Chosen:
    """Load the networks of a trial.

    Args:
        name: name of the sweep on this machine.
        output: directory of results.
        trial: name of the trial, or `best`.
        replicate: number of the replicate, or `all`.
        by: metric that decides which trial is `best`; by default the sweep's objective.
        store: address of the sweep in an object store. Its checkpoints are fetched from there.
        trust: whether to run code from the sweep's folder even if this user has not run it before.
        retrain: whether to train the trial again if its weights are missing.
        say: called with lines on the progress of retraining.

    Raises:
        SweeperError: there is no such trial or replicate, its weights or predictions are gone, or the data set is
            missing.
    """
    sweep = open_sweep(name, output)
    if sweep.spec.loop == IMPORTED:
        raise SweeperError(
            f"{name} has imported predictions and no network", "export the model with the tool that trained it"
        )
    if sweep.spec.loop is not None:
        raise SweeperError(
            f"{name} was trained by {sweep.spec.loop}, but export supports only the built-in training loop",
            "load its checkpoint with torch.load(…, weights_only=True) and pass its state to your loop",
        )
    take_up_kept(sweep.paths, sweep.spec, read_manifest(sweep.paths.manifest), trust=trust)
    trial, why = _trial(Results(sweep.paths.root), trial, by)
    weights = _weights(sweep, trial, sweep.paths.checkpoints, store)
    again: float | None = None
    if weights is None:
        if not retrain:  # retraining takes as long as the trial, so it must be requested
            raise SweeperError(
                f"the weights of {trial} are gone: the sweep keeps only those of its best finished trials",
                f"export --trial {BEST}, or pass --retrain to train it again; `keep: {{best: 3}}` keeps more",
            )
        weights, again = _trained_again(sweep, trial, replicate, say)
    epoch, states = weights
    numbers = _numbers(trial, replicate, states)
    # The sweep's own logits are needed to check that the exported program computes what the sweep measured.
    predictions = _predictions(sweep, trial, epoch)
    if lost := [number for number in numbers if number not in predictions]:
        raise SweeperError(
            f"{trial}, replicate {lost[0]}, has no stored predictions of epoch {epoch}, the epoch of its checkpoint",
            "resume the sweep until the trial reaches its next rung, or choose another --trial",
        )
    configuration: Description = dict(sweep.configuration_of(trial))
    dataset = _dataset(sweep, configuration)
    networks = [TrainedNetwork(_network(dataset, configuration, states[n]), predictions[n]) for n in numbers]
    return Chosen(sweep, trial, epoch, configuration, dataset, networks, again, why)


def _trial(results: Results, trial: str, by: str | None) -> tuple[str, str]:
    """Return a trial's name and the reason for its choice, `best by validation NLL`; no reason if the user named it."""
    if by is not None and trial != BEST:
        raise SweeperError(f"--by {by} and --trial {trial} both choose a trial", "give only one of them")
    board = leaderboard(results, by=by)
    if trial == BEST:
        if board.best is None:
            raise SweeperError(
                f"the sweep {results.name!r} has no evaluated trial yet", "wait until one reaches its first rung"
            )
        return text_of(board.best, "trial"), f"best by {board.objective.label}"
    names = [text_of(row, "trial") for row in board.rows]
    if trial not in names:
        example = f"{BEST}, or one that `sweeper results {results.name} --all` lists"
        raise SweeperError(f"the sweep {results.name!r} has no evaluated trial {trial!r}", f"choose {example}")
    return trial, ""


#: (Epoch, replicate → its weights at that epoch).
Weights: TypeAlias = tuple[int, dict[int, Mapping[str, Tensor]]]


def _weights(sweep: Sweep, trial: str, checkpoints: Path, store: str | None = None) -> Weights | None:
    """Return the weights of a trial's newest checkpoint, `None` if there is none."""
    last = sweep.spec.scheduler.max_epochs
    # With `packing: trials`, each replicate has its own folder. Otherwise all replicates share one.
    places: dict[int | None, Path] = {None: Path(trial)}
    places |= {number: replicate_folder(Path(trial), number) for number in range(sweep.spec.replicates.count)}
    epochs: dict[int, int] = {}
    states: dict[int, Mapping[str, Tensor]] = {}
    for number, place in places.items():
        files = TrialFiles(place, tables=None, checkpoints=checkpoints, store=store)
        files.fetch_checkpoints()
        checkpoint = load_newest_checkpoint(files.checkpoints) if files.checkpoints is not None else None
        if checkpoint is None:
            continue
        for at, saved in enumerate(checkpoint["replicates"], start=number or 0):
            if saved is not None:
                epochs[at] = saved["epoch"]
                states[at] = measured_weights(saved, finished=saved["epoch"] >= last)
    if not states:
        return None
    # A stopped sweep can leave replicates at different epochs. Their networks must not be combined.
    newest = max(epochs.values())
    return newest, {at: state for at, state in states.items() if epochs[at] == newest}


def _trained_again(sweep: Sweep, trial: str, replicate: str, say: Callable[[str], None]) -> tuple[Weights, float]:
    """Retrain a trial; return its weights, and the largest difference of their logits from the stored logits."""
    states = fold(read_journal(sweep.paths.journal), len(sweep.configurations)).trials
    state = states[configuration_index(trial)]
    epoch = state.last_evaluation_epoch
    stored = _predictions(sweep, trial, epoch) if epoch is not None else {}
    if epoch is None or not stored:
        raise SweeperError(
            f"{trial} has no stored predictions to compare new weights with", "restore the table `predictions`"
        )
    # An unknown replicate is reported later, together with the existing replicates.
    numbers = [int(replicate)] if replicate.isdecimal() and int(replicate) in stored else sorted(stored)
    with tempfile.TemporaryDirectory(prefix="sweeper-again-") as made, ForkServer() as server:
        folder = Path(made)
        process = server.fork(WorkerInit(_settings(sweep, state, epoch, folder), str(folder / "log")))
        try:
            for assignment in _assignments(sweep, state, numbers):
                _train(process, assignment, epoch, say)
            process.send(None)
        finally:
            process.kill()  # also after Ctrl-C, because a worker in the middle of an epoch would continue training
        weights = _weights(sweep, trial, folder / CHECKPOINTS)
        assert weights is not None
        return weights, max(_difference(stored[number], folder / TABLES) for number in numbers)


def _difference(stored: StoredPredictions, tables: Path) -> float:
    """Return the largest difference between the logits of a retrained replicate and the stored logits; 0 if equal."""
    name = part_name(stored.trial, stored.replicate, stored.epoch)
    new = predictions_in(tables / "predictions" / name).logits
    return max(
        # Equality is checked first, because infinite logits would give inf − inf = NaN.
        0.0 if np.array_equal(new[part], old) else float(np.abs(new[part] - old).max())
        for part, old in stored.logits.items()
    )


def _numbers(trial: str, replicate: str, states: Mapping[int, object]) -> list[int]:
    if replicate == ALL:
        return sorted(states)
    known = ", ".join(map(str, sorted(states)))
    if not replicate.isdecimal() or int(replicate) not in states:
        raise SweeperError(f"{trial} has no weights of replicate {replicate!r}", f"choose one of {known}, or {ALL}")
    return [int(replicate)]


def _predictions(sweep: Sweep, trial: str, epoch: int) -> dict[int, StoredPredictions]:
    both = {FITTED_ON, MEASURED_ON}
    return {
        stored.replicate: stored
        for stored in PredictionFiles(sweep.paths, [trial]).evaluations()
        if (stored.trial, stored.epoch) == (trial, epoch) and both <= set(stored.logits)
    }


def _dataset(sweep: Sweep, configuration: Description) -> DataSet:
    options = dict(configuration.get("dataset") or sweep.spec.dataset)
    try:
        return load_dataset(options.pop("name"), **options)
    except DataSetUnavailableError as error:
        raise SweeperError(f"an export checks the network on its test data: {error}") from error


def _network(dataset: DataSet, configuration: Description, state: Mapping[str, Tensor]) -> nn.Module:
    without = ("pretrained", "weights_file")  # these would download weights, which the checkpoint replaces anyway
    described = {key: value for key, value in configuration["architecture"].items() if key not in without}
    network = build_for(dataset, described)
    try:
        network.load_state_dict(dict(state))
    except RuntimeError as error:
        raise SweeperError(
            f"the checkpoint does not fit {described['name']}: {str(error).splitlines()[0]}",
            "export with the version of the program that ran the sweep",
        ) from error
    return network.eval()

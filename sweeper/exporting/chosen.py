"""Which networks are exported: the weights of a trial with the predictions they made, from its checkpoint, or from
training it again where that is gone.

Training again takes the same configuration, seeds, packing and threads, in a process like the trial's own, so that the
same machine gives the same bits. Everything is written into a temporary folder; the sweep stays as it is.
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

#: Settings, or what `model.json` says: JSON of several depths.
Description: TypeAlias = dict[str, Any]


def _settings(sweep: Sweep, trial: TrialState, epoch: int, folder: Path) -> TrialSettings:
    """Return the trial's settings but for what only measures: one evaluation, which stores the logits.

    Raises SweeperError where it was trained on a card and none is here.
    """
    spec, device = sweep.spec, trial.device or "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise SweeperError(
            f"{trial_name(trial.configuration)} was trained on a GPU, and this machine has none",
            "export on a machine with one",
        )
    return TrialSettings(
        dataset=spec.dataset,
        max_epochs=spec.scheduler.max_epochs,
        rungs=(epoch,),
        objective="train_loss",
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
    """Return what to train.

    Lanes round otherwise than a network alone, so of fused replicates all are trained.
    """
    index = trial.configuration
    values: Description = sweep.configurations[index]
    seeds = sweep.spec.replicate_seeds.of(index)
    if trial.packing == FUSED:
        return [Assignment(index, trial_name(index), values, seeds)]
    return [Assignment(index, trial_name(index), values, [seeds[number]], number) for number in replicates]


def _train(process: TrialProcess, assignment: Assignment, epoch: int, say: Callable[[str], None]) -> None:
    """Train one assignment up to the epoch. Raises SweeperError where that fails."""
    process.send(WorkerCommand(new=([assignment],)))
    number = assignment.replicate
    name, which = assignment.trial, "" if number is None else f", replicate {number}"
    while True:
        try:
            said: WorkerReport | WorkerFailed = process.connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise SweeperError(f"retraining {name} failed: its process ended without an error message") from error
        if isinstance(said, WorkerFailed):
            raise SweeperError(f"retraining {name} failed: {reason_text(said.failure)}")
        ((reports, _),) = said.reports
        last = reports[-1]
        if last.failure:
            raise SweeperError(f"retraining {name} failed: {reason_text(last.failure)}")
        say(f"{name}{which}: epoch {last.epoch} of {epoch}")
        over = last.epoch >= epoch
        process.send(WorkerCommand(over=(last.configuration,) if over else ()))
        if over:
            return


#: The folders of a trial that is trained again.
CHECKPOINTS, TABLES = "checkpoints", "tables"

BEST, ALL = "best", "all"


@dataclass(frozen=True)
class TrainedNetwork:
    """One replicate: its network in evaluation mode on the CPU, and the logits that its sweep stored."""

    network: nn.Module
    stored: StoredPredictions


@dataclass(frozen=True)
class Chosen:
    """The networks to export.

    Attributes:
        sweep, trial, epoch: where they come from.
        configuration: of the trial: loss, architecture, optimizer.
        dataset: what they were trained on.
        networks: one or several replicates.
        again: None where the sweep's own checkpoint was there; else how far the logits of the network that was trained
            again lie from those that the sweep stored, 0 for equal bits.
        why: `best by validation NLL`; empty where the trial was named.
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
        name: of the sweep on this machine.
        output: where it is.
        trial: its name, or `best`.
        replicate: its number, or `all`.
        by: the metric that decides which trial is `best`; the sweep's objective by default.
        store: the sweep's address in an object store, from where its checkpoints are fetched.
        trust: run the code that came with the sweep's folder, though this user has not run it before.
        retrain: train the trial again where its weights are gone.
        say: takes lines on how far that is.

    Raises:
        SweeperError: no such trial or replicate, its weights or predictions are gone, or the data set is not here.
    """
    sweep = open_sweep(name, output)
    if sweep.spec.loop == IMPORTED:
        raise SweeperError(
            f"{name} has predictions that were imported, and no network", "export it where it was trained"
        )
    if sweep.spec.loop is not None:
        raise SweeperError(
            f"{name} was trained by {sweep.spec.loop}, and export knows only networks of this program's loop",
            "load its checkpoint with torch.load(…, weights_only=True) and give its state to your loop",
        )
    take_up_kept(sweep.paths, sweep.spec, read_manifest(sweep.paths.manifest), trust=trust)
    found, chosen = _trial(Results(sweep.paths.root), trial, by)
    weights = _weights(sweep, found, sweep.paths.checkpoints, store)
    again: float | None = None
    if weights is None:
        if not retrain:
            raise SweeperError(
                f"the weights of {found} are gone: the sweep keeps only those of its best finished trials",
                f"export --trial {BEST}, or give --retrain to train it again; `keep: {{best: 3}}` keeps more",
            )
        weights, again = _trained_again(sweep, found, replicate, say)
    epoch, states = weights
    numbers = _numbers(found, replicate, states)
    predictions = _predictions(sweep, found, epoch)
    if lost := [number for number in numbers if number not in predictions]:
        raise SweeperError(
            f"{found}, replicate {lost[0]}, has no stored predictions of epoch {epoch}, its checkpoint's",
            "resume the sweep until the trial reaches its next rung, or choose another --trial",
        )
    configuration: Description = dict(sweep.configuration_of(found))
    dataset = _dataset(sweep, configuration)
    networks = [TrainedNetwork(_network(dataset, configuration, states[n]), predictions[n]) for n in numbers]
    return Chosen(sweep, found, epoch, configuration, dataset, networks, again, chosen)


def _trial(results: Results, trial: str, by: str | None) -> tuple[str, str]:
    """Return a trial's name, and why it: `best by validation NLL`, or nothing where it was named."""
    if by is not None and trial != BEST:
        raise SweeperError(f"--by {by} chooses a trial, and --trial {trial} names one", "give one of them")
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


#: An epoch, and the weights that count at it, by replicate.
Weights: TypeAlias = tuple[int, dict[int, Mapping[str, Tensor]]]


def _weights(sweep: Sweep, trial: str, checkpoints: Path, store: str | None = None) -> Weights | None:
    """Return the weights of a trial's newest checkpoint; `None` where there is none."""
    last = sweep.spec.scheduler.max_epochs
    places: dict[int | None, Path] = {None: Path(trial)}  # all replicates' in one, or each has its own
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
    newest = max(epochs.values())
    return newest, {at: state for at, state in states.items() if epochs[at] == newest}


def _trained_again(sweep: Sweep, trial: str, replicate: str, say: Callable[[str], None]) -> tuple[Weights, float]:
    """Return the weights that training a trial again gives, and how far their logits lie from the stored ones."""
    states = fold(read_journal(sweep.paths.journal), len(sweep.configurations)).trials
    state = states[configuration_index(trial)]
    epoch = state.last_evaluation_epoch
    stored = _predictions(sweep, trial, epoch) if epoch is not None else {}
    if epoch is None or not stored:
        raise SweeperError(
            f"{trial} has no stored predictions to compare new weights with", "restore the table predictions"
        )
    wanted = [int(replicate)] if replicate.isdecimal() and int(replicate) in stored else sorted(stored)
    with tempfile.TemporaryDirectory(prefix="sweeper-again-") as made, ForkServer() as server:
        folder = Path(made)
        process = server.fork(WorkerInit(_settings(sweep, state, epoch, folder), str(folder / "log")))
        try:
            for assignment in _assignments(sweep, state, wanted):
                _train(process, assignment, epoch, say)
            process.send(None)
        finally:
            process.kill()
        weights = _weights(sweep, trial, folder / CHECKPOINTS)
        assert weights is not None
        return weights, max(_difference(stored[number], folder / TABLES) for number in wanted)


def _difference(stored: StoredPredictions, tables: Path) -> float:
    """Return how far the logits of a replicate that was trained again lie from the stored ones; 0 for equal bits."""
    name = part_name(stored.trial, stored.replicate, stored.epoch)
    new = predictions_in(tables / "predictions" / name).logits
    return max(
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
        each.replicate: each
        for each in PredictionFiles(sweep.paths, [trial]).evaluations()
        if (each.trial, each.epoch) == (trial, epoch) and both <= set(each.logits)
    }


def _dataset(sweep: Sweep, configuration: Description) -> DataSet:
    options = dict(configuration.get("dataset") or sweep.spec.dataset)
    try:
        return load_dataset(options.pop("name"), **options)
    except DataSetUnavailableError as error:
        raise SweeperError(f"an export checks the network on its test data: {error}") from error


def _network(dataset: DataSet, configuration: Description, state: Mapping[str, Tensor]) -> nn.Module:
    without = ("pretrained", "weights_file")  # their weights would be replaced
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

"""Choose the networks to export: replicates of a trial, their weights and their stored predictions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from sweeper.core.cells import text_of
from sweeper.core.errors import SweeperError
from sweeper.core.ids import configuration_index
from sweeper.exporting.retraining import retrain as train_again
from sweeper.exporting.weights import ALL, Replicates, kept_weights, replicates, require_weights, trials_with_weights
from sweeper.journal.journal import read_journal
from sweeper.journal.state import fold
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.predictions import FITTED_ON, MEASURED_ON, PredictionFiles, StoredPredictions
from sweeper.results.trial_facts import BEST
from sweeper.space.user_code import take_up_kept
from sweeper.storage.metadata import read_manifest
from sweeper.storage.sweeps import Sweep, open_sweep
from trainables.datasets import DataSetUnavailableError, load_dataset
from trainables.datasets.base import DataSet
from trainables.models import build_for
from trainables.registry import IMPORTED

#: Nested JSON: settings, or the contents of `model.json`.
Description: TypeAlias = dict[str, Any]


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
        left_out: numbers of the trial's replicates that were asked for with the others, but have no weights.
    """

    sweep: Sweep
    trial: str
    epoch: int
    configuration: Description
    dataset: DataSet
    networks: list[TrainedNetwork]
    again: float | None = None
    why: str = ""
    left_out: Sequence[int] = ()


def chosen_networks(
    name: str,
    output: Path,
    trial: str,
    replicate: str | None,
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
        replicate: number of the replicate; `all` for all that have weights; by default the first that has weights.
        by: metric that decides which trial is `best`; by default the sweep's objective.
        store: address of the sweep in an object store. Its checkpoints are fetched from there.
        trust: whether to run code from the sweep's folder even if this user has not run it before.
        retrain: whether to train replicates again if their weights are missing.
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
    state = fold(read_journal(sweep.paths.journal), len(sweep.configurations))
    trained = replicates(state, configuration_index(trial), sweep.spec.replicates.count)
    epoch = _epoch(trial, replicate, trained)
    # The sweep's own logits are needed to check that the exported program computes what the sweep measured.
    stored = _predictions(sweep, trial, epoch)
    kept = kept_weights(trained, sweep.paths.checkpoints, sweep.spec.scheduler.max_epochs, store)
    weights = kept.of(epoch)
    # A damaged checkpoint is reported. If another replicate took its place, the damage would stay unnoticed.
    numbers = _numbers(replicate, stored, {*weights, *kept.damaged}, retrain=retrain)
    if not numbers:
        raise SweeperError(
            f"{trial} has no stored predictions of epoch {epoch}, with which its weights are checked",
            "restore the table `predictions` from a backup, or choose another --trial",
        )
    lacking = [number for number in numbers if number not in weights]
    again: float | None = None
    if lacking and retrain:
        more, again = train_again(sweep, trial, {number: trained[number] for number in lacking}, stored, say)
        weights |= more
    elif lacking:  # retraining takes as long as the trial, so it must be requested
        require_weights(trial, numbers, kept, epoch, trials_with_weights(state, sweep.paths.checkpoints))
    configuration: Description = sweep.configuration_of(trial).plain()
    dataset = _dataset(sweep, configuration)
    networks = [TrainedNetwork(_network(dataset, configuration, weights[n]), stored[n]) for n in numbers]
    left_out = [number for number in trained if number not in numbers] if replicate == ALL else []
    return Chosen(sweep, trial, epoch, configuration, dataset, networks, again, why, left_out)


def _epoch(trial: str, replicate: str | None, trained: Replicates) -> int:
    """Return the epoch of the last evaluation of a replicate; without a single replicate, the last of all.

    Raises:
        SweeperError: there is no such replicate.
    """
    epochs = {n: unit.last_evaluation_epoch for n, unit in trained.items() if unit.last_evaluation_epoch is not None}
    if epochs and (replicate is None or replicate == ALL):
        # The latest epoch leaves out replicates that stopped earlier.
        return max(epochs.values())
    if replicate is None or not replicate.isdecimal() or int(replicate) not in epochs:
        known = ", ".join(map(str, sorted(epochs))) or "no replicate that was evaluated"
        raise SweeperError(f"{trial} has no replicate {replicate!r}", f"choose one of {known}, or {ALL}")
    return epochs[int(replicate)]


def _numbers(replicate: str | None, stored: Collection[int], weights: Collection[int], *, retrain: bool) -> list[int]:
    """Return the replicates to export; empty if their predictions are not stored.

    Args:
        replicate: the user's choice.
        stored: replicates with stored predictions.
        weights: replicates with a checkpoint.
        retrain: whether replicates without weights are trained again.
    """
    usable = sorted({*stored} & {*weights})
    if replicate == ALL:
        return sorted(stored) if retrain else usable or sorted(stored)
    if replicate is None:
        return (usable or sorted(stored))[:1]
    return [number for number in stored if number == int(replicate)]


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

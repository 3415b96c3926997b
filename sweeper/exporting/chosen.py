"""Which networks are exported: the weights of a trial, from its checkpoint, with the predictions they made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from sweeper.analysis.recalibration.predictions import PredictionFiles, StoredPredictions
from sweeper.core.errors import SweeperError
from sweeper.core.ids import configuration_index
from sweeper.exporting.retraining import trained_again
from sweeper.journal.journal import read_journal
from sweeper.journal.state import TrialState, fold
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.space.user_code import take_up_kept
from sweeper.storage.metadata import read_manifest
from sweeper.storage.sweeps import Sweep, open_sweep
from sweeper.text.cells import text_of
from trainables.datasets import DataSetUnavailableError, load_dataset
from trainables.datasets.base import DataSet
from trainables.models import build_for
from trainables.training.fine_tuning import measured_weights
from trainables.worker.checkpoints import TrialFiles, load_newest_checkpoint, replicate_folder

BEST, ALL = "best", "all"
FITTED_ON, MEASURED_ON = "val", "test"


@dataclass(frozen=True)
class TrainedNetwork:
    """One replicate: its network in evaluation mode on the CPU, and the logits that its sweep stored."""

    replicate: int
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
    """

    sweep: Sweep
    trial: str
    epoch: int
    configuration: Mapping[str, Any]
    dataset: DataSet
    networks: list[TrainedNetwork]
    again: float | None = None


def chosen_networks(
    name: str,
    output: Path,
    trial: str,
    replicate: str,
    *,
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
        store: the sweep's address in an object store, from where its checkpoints are fetched.
        trust: run the code that came with the sweep's folder, though this user has not run it before.
        retrain: train the trial again where its weights are gone.
        say: takes lines on how far that is.

    Raises:
        SweeperError: no such trial or replicate, its weights or predictions are gone, or the data set is not here.
    """
    sweep = open_sweep(name, output)
    take_up_kept(sweep.paths, sweep.spec, read_manifest(sweep.paths.manifest), trust=trust)
    found = _trial(Results(sweep.paths.root), trial)
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
    configuration = sweep.configurations[configuration_index(found)]
    dataset = _dataset(sweep, configuration)
    networks = [
        TrainedNetwork(number, _network(dataset, configuration, states[number]), predictions[number])
        for number in numbers
    ]
    return Chosen(sweep, found, epoch, configuration, dataset, networks, again)


def _trial(results: Results, trial: str) -> str:
    board = leaderboard(results)
    if trial == BEST:
        if board.best is None:
            raise SweeperError(
                f"the sweep {results.name!r} has no evaluated trial yet", "wait until one reaches its first rung"
            )
        return text_of(board.best, "trial")
    names = [text_of(row, "trial") for row in board.rows]
    if trial not in names:
        example = f"{BEST}, or one that `sweeper results {results.name} --all` lists"
        raise SweeperError(f"the sweep {results.name!r} has no evaluated trial {trial!r}", f"choose {example}")
    return trial


Weights: TypeAlias = tuple[int, dict[int, Mapping[str, Tensor]]]
"""An epoch, and the weights that count at it, by replicate."""


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
    state = _state(sweep, trial)
    epoch = state.last_evaluation_epoch
    stored = _predictions(sweep, trial, epoch) if epoch is not None else {}
    if epoch is None or not stored:
        raise SweeperError(
            f"{trial} has no stored predictions to compare new weights with", "restore the table predictions"
        )
    wanted = [int(replicate)] if replicate.isdecimal() and int(replicate) in stored else sorted(stored)
    with trained_again(sweep, state, epoch, wanted, say) as again:
        weights = _weights(sweep, trial, again.checkpoints)
        assert weights is not None
        difference = max(again.difference(stored[number]) for number in wanted)
    return weights, difference


def _state(sweep: Sweep, trial: str) -> TrialState:
    return fold(read_journal(sweep.paths.journal), len(sweep.configurations)).trials[configuration_index(trial)]


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


def _dataset(sweep: Sweep, configuration: Mapping[str, Any]) -> DataSet:
    options = dict(configuration.get("dataset") or sweep.spec.dataset)
    try:
        return load_dataset(options.pop("name"), **options)
    except DataSetUnavailableError as error:
        raise SweeperError(f"an export checks the network on its test data: {error}") from error


def _network(dataset: DataSet, configuration: Mapping[str, Any], state: Mapping[str, Tensor]) -> nn.Module:
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

"""Read the weights that a sweep has kept of a trial's replicates, and say truthfully why others are lacking.

A replicate is trained with its trial or added later, as a fresh seed. An added replicate has its own checkpoints.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from sweeper.core.errors import SweeperError
from sweeper.core.ids import is_added, trial_name
from sweeper.journal.state import ENDED, SweepState, TrialState
from sweeper.scheduling.contenders import replicates_of
from trainables.training.fine_tuning import measured_weights
from trainables.worker.checkpoints import TrialFiles, load_newest_checkpoint, replicate_folder

#: Number of a replicate → state of the trial, or of the added seed, that trained it.
Replicates: TypeAlias = Mapping[int, TrialState]

ALL = "all"

#: Most alternatives of one kind that an error names.
MOST_NAMED = 3


def replicates(state: SweepState, index: int, count: int) -> Replicates:
    """Return the replicates of a trial.

    Args:
        state: state of the sweep.
        index: index of the trial.
        count: number of replicates that are trained with each trial.
    """
    own = {} if is_added(index) else dict.fromkeys(range(count), state.trials[index])
    return own | replicates_of(state).get(index, {})


@dataclass(frozen=True)
class KeptWeights:
    """The weights in the newest checkpoints of a trial's replicates.

    Attributes:
        states: replicate → weights.
        epochs: replicate → epoch of its weights.
        damaged: replicate → its damaged checkpoint, and the kind of damage.
    """

    states: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)

    def of(self, epoch: int) -> dict[int, Mapping[str, Tensor]]:
        """Return the weights after `epoch` epochs, by replicate."""
        # An older checkpoint than the damaged one has weights that the sweep did not measure last.
        return {n: state for n, state in self.states.items() if self.epochs[n] == epoch and n not in self.damaged}


def kept_weights(trained: Replicates, checkpoints: Path, last: int, store: str | None = None) -> KeptWeights:
    """Read the newest checkpoints of replicates.

    Args:
        trained: the replicates.
        checkpoints: folder of the checkpoints of all trials.
        last: last epoch of the sweep.
        store: address of the sweep in an object store, from which checkpoints are fetched first.
    """
    kept = KeptWeights()
    for numbers, place in _places(trained):
        files = TrialFiles(place, tables=None, checkpoints=checkpoints, store=store)
        files.fetch_checkpoints()
        assert files.checkpoints is not None
        faults: dict[Path, str] = {}
        # Export only reads: the worker that continues from these files sets damaged ones aside.
        checkpoint = load_newest_checkpoint(files.checkpoints, functools.partial(_note, faults))
        for damaged in faults.values():
            kept.damaged.update({number: damaged for number in numbers if number in trained})
        for number, saved in zip(numbers, checkpoint["replicates"] if checkpoint else (), strict=False):
            if saved is not None and number in trained:
                kept.epochs[number] = saved["epoch"]
                kept.states[number] = measured_weights(saved, finished=saved["epoch"] >= last)
    return kept


def _note(faults: dict[Path, str], path: Path, error: Exception) -> None:
    faults[path] = f"{path} ({type(error).__name__})"


def _places(trained: Replicates) -> Iterator[tuple[Sequence[int], Path]]:
    """Yield the folders that can have checkpoints, with the replicates in each."""
    own = [number for number, unit in trained.items() if unit.added is None]
    added = [number for number in trained if number not in own]
    # A trial's checkpoint has all its replicates in order, also if only some are asked for.
    for numbers in ([range(max(own) + 1)] if own else []) + [range(number, number + 1) for number in added]:
        folder = Path(trial_name(trained[max(numbers)].configuration))
        yield numbers, folder
        # With `packing: trials`, each replicate has its own folder. Otherwise all replicates of a trial share one.
        for number in numbers:
            yield [number], replicate_folder(folder, number)


def require_weights(trial: str, wanted: Sequence[int], kept: KeptWeights, epoch: int, others: Sequence[str]) -> None:
    """Raise SweeperError if a wanted replicate has no sound weights after `epoch` epochs.

    Args:
        trial: name of the trial.
        wanted: numbers of replicates.
        kept: the weights of the trial's replicates.
        epoch: epoch of their last evaluation.
        others: names of the trials that have weights.
    """
    usable = kept.of(epoch)
    lacking = next((number for number in wanted if number not in usable), None)
    if lacking is None:
        return
    instead = [f"--replicate {number}" for number in sorted(usable)[:MOST_NAMED]]
    instead += [f"--trial {name}" for name in others if name != trial][:MOST_NAMED]
    remedy = f"pass --retrain to train it again{', or ' if instead else ''}{' or '.join(instead)}"
    if lacking in kept.damaged:
        raise SweeperError(
            f"the checkpoint of {trial}, replicate {lacking}, is damaged: {kept.damaged[lacking]}",
            f"restore it from a backup; or {remedy}",
        )
    if lacking in kept.epochs:
        raise SweeperError(
            f"the checkpoint of {trial}, replicate {lacking}, is of epoch {kept.epochs[lacking]}, and its predictions "
            f"are of epoch {epoch}",
            f"resume the sweep until the trial reaches its next rung; or {remedy}",
        )
    raise SweeperError(
        f"the weights of {trial}, replicate {lacking}, are gone: the sweep keeps only those of its best trials",
        f"{remedy}; `keep: {{best: 3}}` in a search space keeps more",
    )


def trials_with_weights(state: SweepState, checkpoints: Path) -> list[str]:
    """Return the names of the ended trials that have checkpoints on this machine."""
    units = [unit for unit in state.trials.values() if unit.status in ENDED]
    with_files = [unit for unit in units if (checkpoints / trial_name(unit.configuration)).is_dir()]
    indices = {unit.configuration if unit.added is None else unit.added.trial for unit in with_files}
    return [trial_name(index) for index in sorted(indices)]

"""Recovery from a damaged journal: truncate it and remove what trials wrote afterwards."""

from __future__ import annotations

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import set_aside_damaged
from sweeper.journal.state import ReplicateState, SweepState
from sweeper.storage.mirror import Mirror, SharedFolder
from trainables.worker.checkpoints import checkpoint_epochs, checkpoint_file


def remove_checkpoints_ahead(paths: SweepPaths, state: SweepState) -> None:
    """Remove checkpoints of epochs that a cut-off journal no longer knows: trials cannot continue from there.

    Left in place, the driver would find out trial by trial, and each would go to the back of the queue.
    """
    for index in state.unfinished():
        trial, folder = state.trials[index], paths.trial_checkpoints(index)
        known = {folder: trial.epochs}
        for own in folder.glob("r*"):
            known[own] = trial.replicates.get(int(own.name[1:]), ReplicateState()).epochs
        for place, epochs in known.items():
            for epoch in checkpoint_epochs(place):
                if epoch > epochs:
                    checkpoint_file(place, epoch).unlink(missing_ok=True)


def discard_damaged(paths: SweepPaths, mirror: Mirror | SharedFolder) -> list[str]:
    """Cut the journal off before its first damaged record; return what was done, in a sentence, if anything."""
    names = set_aside_damaged(paths.journal)
    mirror.set_aside(names)
    if not names:
        return []
    return [
        f"{len(names)} journal records from {names[0]} on were quarantined (as ….damaged in {paths.journal.name}/): "
        "their results were measured again"
    ]

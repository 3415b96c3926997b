"""Keep the checkpoint of the best ended trial; remove those of the others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from sweeper.core.ids import trial_name
from sweeper.journal.best import Rank, best_rank, rank_of
from sweeper.journal.state import ENDED, SweepState
from sweeper.scheduling.base import Scheduler
from trainables.worker.trial_reports import NON_FINITE

OVER = {"continue", "stop", "complete", "fail", NON_FINITE}
"""Endings that running a trial again would repeat: one that crashed or took too long can go on from its checkpoint."""


class CheckpointKeeper(Protocol):
    """Where checkpoints are removed: in a folder that all machines share, or in a store."""

    def remove_checkpoints(self, place: str, *, now: bool = False) -> None:
        """Remove the checkpoints of a trial (`c00007`) or of one of its replicates (`c00007/r1`)."""

    def trials_with_checkpoints(self) -> set[str]:
        """Return the names of the trials that have any."""


class BestCheckpoint:
    """Knows the best trial that has ended, and removes the checkpoints of those that are not it."""

    def __init__(self, keeper: CheckpointKeeper, state: SweepState, schedule: Scheduler) -> None:
        """Find the best of the trials that have ended by now.

        Args:
            keeper: removes checkpoints.
            state: of the sweep, which continues changing.
            schedule: says what is better.
        """
        self._keeper, self._state, self._schedule = keeper, state, schedule
        self._best = self._best_ended()

    def tidy(self, index: int) -> None:
        """Remove a trial's checkpoints if it has ended and is not the best so far; if it is, the former best's."""
        trial = self._state.trials[index]
        if trial.status not in ENDED or trial.stop_kind not in OVER:
            return
        if self._schedule.constrained_metrics:
            self._best, before = self._best_ended(), self._best
            keeps = -self._best[2] if self._best else -1
            for each in {index, -before[2] if before else index} - {keeps}:
                self._keeper.remove_checkpoints(trial_name(each))
            return
        rank, loser = rank_of(trial, self._schedule.mode), index
        if rank is not None and (self._best is None or rank > self._best):
            loser = -self._best[2] if self._best else -1
            self._best = rank
        if loser >= 0:
            self._keeper.remove_checkpoints(trial_name(loser))

    def remove_leftovers(self, unknown: Collection[int] = ()) -> None:
        """Remove what a driver that died between a trial's end and its tidying up left behind.

        Args:
            unknown: trials that the journal does not know, whose checkpoints were made by what was lost of it.
        """
        best = -self._best[2] if self._best else None
        done = {i for i, t in self._state.trials.items() if t.status in ENDED and t.stop_kind in OVER}
        for name in {trial_name(i) for i in (done | {*unknown}) - {best}} & self._keeper.trials_with_checkpoints():
            self._keeper.remove_checkpoints(name)

    def _best_ended(self) -> Rank | None:
        ended = (index for index, trial in self._state.trials.items() if trial.status in ENDED)
        return best_rank(self._state, self._schedule, ended)

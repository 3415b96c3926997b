"""Which ended trials keep their checkpoints: the best ones, of the sweep or of each stratum; the others' are removed.

A constraint beside the best, `val_accuracy within 0.005 of the best`, can take the first place from a trial when a more
accurate one comes. So a trial gives up its checkpoint only when others, as many as are kept, stay ahead of it whatever
comes: complete where it is, no worse in the objective, and no worse in anything that the constraints look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from sweeper.core.ids import trial_name
from sweeper.journal.best import Rank, rank_of
from sweeper.journal.state import COMPLETED, ENDED, SweepState, TrialState
from sweeper.scheduling.base import Scheduler
from trainables.worker.trial_reports import NON_FINITE

OVER = {"continue", "stop", "complete", "fail", NON_FINITE}
"""Endings that a retry would repeat: a trial that crashed or took too long can continue from its checkpoint."""


class CheckpointKeeper(Protocol):
    """Where checkpoints are removed: in a folder that all machines share, or in a store."""

    def remove_checkpoints(self, place: str, *, now: bool = False) -> None:
        """Remove the checkpoints of a trial (`c00007`) or of one of its replicates (`c00007/r1`)."""

    def trials_with_checkpoints(self) -> set[str]:
        """Return the names of the trials that have any."""


@dataclass(frozen=True)
class Keeping:
    """Whose checkpoints are kept.

    Attributes:
        best: how many of each stratum.
        stratum: names a configuration's stratum; the sweep is one stratum by default.
    """

    best: int = 1
    stratum: Callable[[int], str] = lambda configuration: ""


THE_BEST = Keeping()
"""The best trial's alone."""

Costs: TypeAlias = tuple[float, ...]


class KeptCheckpoints:
    """Knows the trials that have ended and keep their checkpoints, and removes those of the others."""

    def __init__(
        self, keeper: CheckpointKeeper, state: SweepState, schedule: Scheduler, keeping: Keeping = THE_BEST
    ) -> None:
        """Find the trials that keep theirs, of those that have ended by now.

        Args:
            keeper: removes checkpoints.
            state: of the sweep, which continues changing.
            schedule: says what is better.
            keeping: how many of which trials.
        """
        self._keeper, self._state, self._schedule = keeper, state, schedule
        self._keeping = keeping
        self._kept: dict[str, dict[int, tuple[Rank, Costs]]] = {}
        for index, trial in state.trials.items():
            if trial.status in ENDED:
                self._enter(index)

    def tidy(self, index: int) -> None:
        """Remove the checkpoints that a trial makes superfluous if it has ended: its own, or those it now surpasses."""
        trial = self._state.trials[index]
        if trial.status in ENDED and trial.stop_kind in OVER:
            for each in self._enter(index):
                self._keeper.remove_checkpoints(trial_name(each))

    def remove_leftovers(self, unknown: Collection[int] = ()) -> None:
        """Remove what a driver that died between a trial's end and its tidying up left behind.

        Args:
            unknown: trials that the journal does not know, whose checkpoints were made by what was lost of it.
        """
        kept = {index for stratum in self._kept.values() for index in stratum}
        done = {i for i, t in self._state.trials.items() if t.status in ENDED and t.stop_kind in OVER}
        for name in {trial_name(i) for i in (done | {*unknown}) - kept} & self._keeper.trials_with_checkpoints():
            self._keeper.remove_checkpoints(name)

    def _enter(self, index: int) -> list[int]:
        """Let an ended trial compete in its stratum; return the trials that need their checkpoints no more."""
        trial = self._state.trials[index]
        rank = rank_of(trial, self._schedule.mode)
        if rank is None:
            return [index]
        kept = self._kept.setdefault(self._keeping.stratum(index), {})
        kept[index] = rank, self._costs(trial)
        surpassed = [each for each, its in kept.items() if self._ahead_of(its, kept) >= self._keeping.best]
        for each in surpassed:
            del kept[each]
        return surpassed

    @staticmethod
    def _ahead_of(its: tuple[Rank, Costs], kept: dict[int, tuple[Rank, Costs]]) -> int:
        """Return how many trials stay ahead of one whatever comes. Being ahead is transitive: none that was removed
        needs to be asked.
        """
        rank, costs = its
        return sum(
            other > rank and (other[0] > rank[0] or all(one <= two for one, two in zip(theirs, costs, strict=True)))
            for other, theirs in kept.values()
        )

    def _costs(self, trial: TrialState) -> Costs:
        """Return what the constraints use, smaller is better, infinite where not measured; they judge complete
        trials alone. A journal that says no more than whether a trial kept to them has said so for good.
        """
        constraints = self._schedule.constraints if trial.status == COMPLETED else ()
        if trial.constrained is None:
            return (-math.inf if trial.feasible else math.inf,) * len(constraints)
        values = [(each.goal, trial.constrained.get(each.goal.metric, math.nan)) for each in constraints]
        return tuple(goal.cost(value) if math.isfinite(value) else math.inf for goal, value in values)

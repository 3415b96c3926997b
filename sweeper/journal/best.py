"""The best trial: the only definition, for displays, artifacts and checkpoints.

A trial that ran to its end comes before any that did not, whatever their values: after fewer epochs an objective says
something else. Of equals the first one drawn is named. `sweeper.results.leaderboard` orders Parquet tables in the same
way, in SQL.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping
from typing import Protocol, TypeAlias

from sweeper.core.objective import Mode, score
from sweeper.journal.state import COMPLETED, FAILED, SweepState, TrialState

Rank: TypeAlias = tuple[int, float, int]
"""2 for completed, 1 for completed against the sweep's constraints, 0 for neither; the score; and minus the
configuration's index: the best trial has the largest."""


class Judging(Protocol):
    """The part of a scheduler that says which of two trials is better."""

    @property
    def mode(self) -> Mode:
        """Whether the objective should be small, `min`, or large, `max`."""

    def keeping(self, measured: Mapping[int, Mapping[str, float]]) -> set[int]:
        """Return the complete trials that keep to the sweep's constraints, by what they measured of them."""


def best_trial(state: SweepState, judging: Judging) -> TrialState | None:
    """Return the best trial: a completed one if there is any; `None` where nothing has been measured.

    Args:
        state: of the sweep. Trials that failed are never the best, nor is one whose objective is not a number.
        judging: the sweep's scheduler.
    """
    return next(iter(best_trials(state, judging, 1)), None)


def best_trials(state: SweepState, judging: Judging, most: int) -> list[TrialState]:
    """Return up to `most` trials, best first; those that can be the best at all."""
    against = against_constraints(state, judging)
    ranks = (rank_of(trial, judging.mode, against) for trial in state.trials.values())
    best = heapq.nlargest(most, (rank for rank in ranks if rank is not None))
    return [state.trials[-rank[2]] for rank in best]


def against_constraints(state: SweepState, judging: Judging) -> set[int]:
    """Return the complete trials that break the sweep's constraints beside all that are complete by now.

    `within 0.5 points of the best` asks for more when a better one comes. A journal that does not say what was measured
    says how it was when the trial was complete.
    """
    completed = {index: trial for index, trial in state.trials.items() if trial.status == COMPLETED}
    measured = {index: trial.constrained for index, trial in completed.items() if trial.constrained is not None}
    told = {index for index, trial in completed.items() if trial.constrained is None and not trial.feasible}
    return told | (measured.keys() - judging.keeping(measured)) if measured else told


def rank_of(trial: TrialState, mode: Mode, against: Collection[int] = ()) -> Rank | None:
    """Return how good a trial is among those of its sweep; `None` for one that cannot be the best.

    `against` are the complete trials that break the sweep's constraints.
    """
    if trial.status == FAILED or trial.objective is None or not math.isfinite(trial.objective):
        return None
    completed = (2 - (trial.configuration in against)) * (trial.status == COMPLETED)
    return completed, score(trial.objective, mode), -trial.configuration


def best_words(trial: TrialState) -> str:
    """Return what to call the best trial: `best`, or `best so far` while none has completed."""
    return "best" if trial.status == COMPLETED else "best so far"

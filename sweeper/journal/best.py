"""The best trial: the only definition, for displays, artifacts and checkpoints.

A trial that ran to its end comes before any that did not, whatever their values: after fewer epochs an objective says
something else. Of equals the first one drawn is named. `sweeper.results.leaderboard` orders Parquet tables in the same
way, in SQL.
"""

from __future__ import annotations

import heapq
import math
from typing import TypeAlias

from sweeper.core.objective import Mode, score
from sweeper.journal.state import COMPLETED, FAILED, SweepState, TrialState

Rank: TypeAlias = tuple[int, float, int]
"""2 for completed, 1 for completed against the sweep's constraints, 0 for neither; the score; and minus the
configuration's index: the best trial has the largest."""


def best_trial(state: SweepState, mode: Mode) -> TrialState | None:
    """Return the best trial: a completed one if there is any; `None` where nothing has been measured.

    Args:
        state: of the sweep. Trials that failed are never the best, nor is one whose objective is not a number.
        mode: whether the objective should be small, `min`, or large, `max`.
    """
    return next(iter(best_trials(state, mode, 1)), None)


def best_trials(state: SweepState, mode: Mode, most: int) -> list[TrialState]:
    """Return up to `most` trials, best first; those that can be the best at all."""
    ranks = [rank for trial in state.trials.values() if (rank := rank_of(trial, mode)) is not None]
    return [state.trials[-rank[2]] for rank in heapq.nlargest(most, ranks)]


def rank_of(trial: TrialState, mode: Mode) -> Rank | None:
    """Return how good a trial is among those of its sweep; `None` for one that cannot be the best."""
    if trial.status == FAILED or trial.objective is None or not math.isfinite(trial.objective):
        return None
    completed = (1 + trial.feasible) * (trial.status == COMPLETED)
    return completed, score(trial.objective, mode), -trial.configuration


def best_words(trial: TrialState) -> str:
    """Return what to call the best trial: `best`, or `best so far` while none has completed."""
    return "best" if trial.status == COMPLETED else "best so far"

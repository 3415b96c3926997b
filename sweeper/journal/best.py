"""What a sweep optimises, which trial is the best, and what the sweep's own trials have spent.

A trial that ran to its end comes before any that did not, whatever their values: after fewer epochs an objective says
something else. Of equals the first one drawn is named. `sweeper.results.leaderboard` orders Parquet tables in the same
way, in SQL.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from sweeper.journal.records import Record, ReplicateReported, Reported
from sweeper.journal.state import COMPLETED, FAILED, SweepState, TrialState
from trainables.registry.names import measured_as
from trainables.worker.trial_reports import TrialReport

Mode: TypeAlias = Literal["min", "max"]


@dataclass(frozen=True)
class Objective:
    """What a sweep optimises.

    Attributes:
        metric: as the search space says it, e.g. `val_nll`.
        mode: `min` or `max`.
    """

    metric: str
    mode: Mode = "min"

    @property
    def split(self) -> str:
        """The split it is measured on: `train`, `val` or `test`."""
        return measured_as(self.metric)[0]

    @property
    def column(self) -> str:
        """The column of `evaluations` that holds it, e.g. `nll`."""
        return measured_as(self.metric)[1]

    @property
    def direction(self) -> str:
        """SQL's word for best first."""
        return "DESC" if self.mode == "max" else "ASC"

    def cost(self, value: float) -> float:
        """Return a value with smaller meaning better."""
        return value if self.mode == "min" else -value


#: 2 for completed, 1 for completed against the sweep's constraints, 0 for neither; the score, which is the objective
#: with larger meaning better; and minus the configuration's index: the best trial has the largest.
Rank: TypeAlias = tuple[int, float, int]


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

    `within 0.5 points of the best` asks for more when a better one comes.
    """
    drawn = {index: trial for index, trial in state.trials.items() if trial.added is None}
    completed = {index: trial for index, trial in drawn.items() if trial.status == COMPLETED}
    measured = {index: trial.constrained for index, trial in completed.items() if trial.constrained is not None}
    return measured.keys() - judging.keeping(measured) if measured else set()


def rank_of(trial: TrialState, mode: Mode, against: Collection[int] = ()) -> Rank | None:
    """Return how good a trial is among those of its sweep; `None` for one that cannot be the best.

    `against` are the complete trials that break the sweep's constraints.
    """
    if (
        trial.added is not None
        or trial.status == FAILED
        or trial.objective is None
        or not math.isfinite(trial.objective)
    ):
        return None
    completed = (2 - (trial.configuration in against)) * (trial.status == COMPLETED)
    score = trial.objective if mode == "max" else -trial.objective
    return completed, score, -trial.configuration


def best_words(trial: TrialState) -> str:
    """Return what to call the best trial: `best`, or `best so far` while none has completed."""
    return "best" if trial.status == COMPLETED else "best so far"


class Spending:
    """Time spent in trials up to their last reports.

    Each report names the share of a GPU that its process had, since shares differ between trials and grow when memory
    runs out. One without a share had the usual one.
    """

    def __init__(self) -> None:
        """Start at nothing."""
        self._seconds = self._gpu_seconds = self._unshared_seconds = 0.0
        self._latest: dict[int, dict[int | None, float]] = {}

    def apply(self, record: Record) -> None:
        """Fold one record in. Records must come in order."""
        body = record.body
        if isinstance(body, ReplicateReported):
            self._add(body.report, body.replicate)
        elif isinstance(body, Reported):
            apart = self._latest.get(body.configuration, {}).keys() - {None}
            if not apart:  # else its replicates' own reports were counted, of which this is made
                self._add(body.report, None)

    def hours(self) -> float:
        """Return the hours of all trials together."""
        return self._seconds / 3600

    def gpu_hours(self, usual: float) -> float:
        """Return the hours of whole GPUs; a report that names no share is taken to have had `usual`."""
        return (self._gpu_seconds + self._unshared_seconds * usual) / 3600

    def _add(self, report: TrialReport, replicate: int | None) -> None:
        latest = self._latest.setdefault(report.configuration, {})
        more = max(0.0, report.wall_seconds - latest.get(replicate, 0.0))
        latest[replicate] = report.wall_seconds
        self._seconds += more
        if report.gpu is None:
            self._unshared_seconds += more
        else:
            self._gpu_seconds += more * report.gpu

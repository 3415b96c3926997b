"""A sweep's best trials, and the time that its trials have spent.

A trial that ran to its end ranks before every trial that did not, whatever their values, because an objective after
fewer epochs is not comparable. In a tie, the trial that was drawn first ranks first. `sweeper.results.leaderboard`
orders Parquet tables in the same way, in SQL.
"""

from __future__ import annotations

import heapq
import math
from typing import Literal, TypeAlias

from sweeper.journal.records import Arrived, Record, ReplicateReported, Reported
from sweeper.journal.state import COMPLETED, FAILED, SweepState, TrialState
from trainables.worker.trial_reports import TrialReport

Mode: TypeAlias = Literal["min", "max"]

#: Sort key of a trial; the best trial has the largest. First part: whether the trial completed. Second: the objective,
#: larger is better. Third: minus the configuration's index, so that the first trial wins a tie.
Rank: TypeAlias = tuple[bool, float, int]


def best_trial(state: SweepState, mode: Mode) -> TrialState | None:
    """Return the best trial (a completed trial, if there is one); `None` if nothing has been measured.

    Failed trials and trials with a non-finite objective are never the best.

    Args:
        state: state of the sweep.
        mode: whether the objective should be small, `min`, or large, `max`.
    """
    return next(iter(best_trials(state, mode, 1)), None)


def best_trials(state: SweepState, mode: Mode, most: int) -> list[TrialState]:
    """Return the best trials, at most `most`, best first; trials without a rank are left out."""
    ranks = (rank_of(trial, mode) for trial in state.trials.values())
    # Do not sort all trials: the live views request the best of many thousand trials at every refresh.
    best = heapq.nlargest(most, (rank for rank in ranks if rank is not None))
    return [state.trials[-rank[2]] for rank in best]


def rank_of(trial: TrialState, mode: Mode) -> Rank | None:
    """Return the sort key of a trial; `None` if it cannot be the best."""
    objective = math.nan if trial.objective is None else trial.objective
    # An added seed belongs to a configuration whose own trial is ranked already.
    if trial.added is not None or trial.status == FAILED or not math.isfinite(objective):
        return None
    return trial.status == COMPLETED, objective if mode == "max" else -objective, -trial.configuration


def best_words(trial: TrialState) -> str:
    """Return the label of the best trial: `best`, or `best so far` while none has completed."""
    return "best" if trial.status == COMPLETED else "best so far"


class Spending:
    """Time spent in trials up to their last reports.

    Each report contains the GPU fraction of its process, because fractions differ between trials and grow after memory
    runs out. A report without a fraction comes from a process with the usual fraction.
    """

    def __init__(self) -> None:
        """Start at nothing."""
        self._seconds = self._gpu_seconds = self._unshared_seconds = 0.0
        self._latest: dict[int, dict[int | None, float]] = {}

    def apply(self, record: Record) -> None:
        """Add one record. Records must come in order."""
        body = record.body
        if isinstance(body, ReplicateReported):
            self._add(body.report, body.replicate)
        elif isinstance(body, Arrived | Reported):
            separate = self._latest.get(body.configuration, {}).keys() - {None}
            if not separate:  # otherwise its replicates' own reports were counted already
                self._add(body.report, None)

    def hours(self) -> float:
        """Return the total hours of all trials."""
        return self._seconds / 3600

    def gpu_hours(self, usual: float) -> float:
        """Return the hours of whole GPUs; a report without a GPU fraction counts with the fraction `usual`."""
        return (self._gpu_seconds + self._unshared_seconds * usual) / 3600

    def _add(self, report: TrialReport, replicate: int | None) -> None:
        latest = self._latest.setdefault(report.configuration, {})
        # A trial that restarted from an older checkpoint reports fewer seconds than before.
        more = max(0.0, report.wall_seconds - latest.get(replicate, 0.0))
        latest[replicate] = report.wall_seconds
        self._seconds += more
        if report.gpu is None:
            self._unshared_seconds += more
        else:
            self._gpu_seconds += more * report.gpu

"""A snapshot of a sweep's progress: counts, rungs, the best trial, throughput, time left. No I/O."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sweeper.journal.best import Rank, best_trials, rank_of
from sweeper.journal.state import ENDED, RUNNING, SweepState, TrialState
from sweeper.scheduling.base import Scheduler

PAUSED = "paused"
"""How a trial is counted here that waits at a rung for the scheduler to promote or to stop it; most are stopped."""

RESTING = (*sorted(ENDED), PAUSED)
"""Trials whose epochs say how many the others will take."""

LEADERS = 3
"""Best trials that a live view names."""


@dataclass
class Snapshot:
    """What a sweep's progress looks like at one moment; made from the state alone.

    Attributes:
        counts: trials by status, with `paused` for those that wait at a rung.
        rungs: rung → how many trials passed it and how many were stopped there.
        towards: rung → how many running trials it is the next one of.
        leaders: the LEADERS best trials, best first.
        epochs, epochs_expected: trained by this driver, and what it will have trained in all if the rest goes alike.
        seconds: since this driver began.
    """

    counts: dict[str, int]
    rungs: dict[int, tuple[int, int]]
    towards: dict[int, int]
    leaders: list[TrialState]
    epochs: float
    epochs_expected: float
    seconds: float

    @property
    def best(self) -> TrialState | None:
        """The best trial, see `sweeper.journal.best`."""
        return self.leaders[0] if self.leaders else None

    @property
    def share(self) -> float:
        """The share of the work that is done, 0 to 1, by trials that have ended."""
        total = sum(self.counts.values())
        ended = sum(self.counts[s] for s in ENDED)
        return ended / total if total else 1.0

    @property
    def seconds_left(self) -> float | None:
        """An estimate of the time left, once enough has happened to make one."""
        if self.epochs <= 0 or self.seconds <= 0:
            return None
        return max(0.0, self.epochs_expected - self.epochs) * self.seconds / self.epochs


def snapshot(state: SweepState, schedule: Scheduler, *, seconds: float, epochs_before: float) -> Snapshot:
    """Return a snapshot: counts, how many trials passed and stopped at each rung, the best trial, throughput.

    Args:
        state: of the sweep.
        schedule: gives the rungs and what is better.
        seconds: since this driver began.
        epochs_before: epochs that earlier drivers had done.
    """
    return Tally(state, schedule).snapshot(seconds=seconds, epochs_before=epochs_before)


@dataclass(frozen=True)
class _Counted:
    """What one trial adds to the numbers."""

    status: str
    epochs: int
    trained: float
    stop_rung: int | None
    rank: Rank | None


class Tally:
    """The numbers of a snapshot, kept up to date by looking at the trials alone that records were about.

    A view that is drawn four times a second would otherwise count 100,000 trials each time.
    """

    def __init__(self, state: SweepState, schedule: Scheduler) -> None:
        """Count all trials of `state`, which keeps changing."""
        self._state, self._schedule, self._rungs = state, schedule, schedule.rungs
        self._counted: dict[int, _Counted] = {}
        self._statuses = dict.fromkeys((*state.count(), PAUSED), 0)
        self._passed, self._stopped, self._towards = (Counter[int]() for _ in range(3))
        self._trained = 0.0
        self._resting_epochs = 0
        self._open: Counter[float] = Counter()
        self._leaders: list[Rank] = []
        self._seen = len(state.touched)
        self._count(state.trials)

    def snapshot(self, *, seconds: float, epochs_before: float) -> Snapshot:
        """Return the snapshot of this moment; arguments as of the function `snapshot`."""
        end = len(self._state.touched)  # first: it grows while a view in a thread of its own looks
        touched = {*self._state.touched[self._seen : end]}
        self._seen = end
        self._count(touched)
        leaders = [self._state.trials[-rank[2]] for rank in self._leaders]
        if self._schedule.constrained_metrics:
            # Who keeps to a constraint beside the best depends on all others.
            leaders = best_trials(self._state, self._schedule, LEADERS)
        resting = sum(self._statuses[status] for status in RESTING)
        mean = self._resting_epochs / resting if resting else float(self._schedule.max_epochs)
        expected = self._trained + sum(count * max(0.0, mean - trained) for trained, count in self._open.items())
        rungs = {rung: (self._passed[rung], self._stopped[rung]) for rung in self._rungs}
        towards = {rung: self._towards[rung] for rung in self._rungs}
        done = self._trained - epochs_before
        counts = {status: count for status, count in self._statuses.items() if count or status != PAUSED}
        return Snapshot(counts, rungs, towards, leaders, done, expected - epochs_before, seconds)

    def _count(self, indices: Iterable[int]) -> None:
        lost = False
        for index in indices:
            trial = self._state.trials[index]
            before, now = self._counted.get(index), _counted(trial, self._schedule)
            if before == now:
                continue
            if before is not None:
                self._add(before, -1)
                lost |= before.rank in self._leaders
            self._add(now, 1)
            self._counted[index] = now
            if now.rank is not None:
                self._leaders = heapq.nlargest(LEADERS, [*self._leaders, now.rank])
        if lost:  # a leader is worse than it was
            ranks = (each.rank for each in self._counted.values())
            self._leaders = heapq.nlargest(LEADERS, (rank for rank in ranks if rank is not None))

    def _add(self, trial: _Counted, sign: int) -> None:
        self._statuses[trial.status] += sign
        self._trained += sign * trial.trained
        for rung in self._rungs:
            self._passed[rung] += sign * (trial.epochs >= rung and trial.stop_rung != rung)
            self._stopped[rung] += sign * (trial.stop_rung == rung)
        if trial.status in RESTING:
            self._resting_epochs += sign * trial.epochs
        else:
            self._open[trial.trained] += sign
        if trial.status == RUNNING:
            rungs = self._rungs
            self._towards[next((rung for rung in rungs if rung > trial.epochs), rungs[-1])] += sign


def _counted(trial: TrialState, schedule: Scheduler) -> _Counted:
    status, rank = PAUSED if trial.paused else trial.status, rank_of(trial, schedule.mode)
    return _Counted(status, trial.epochs, trial.epochs_trained, trial.stop_rung, rank)

"""A snapshot of a sweep's progress: counts, rungs, the best trial, throughput, time left. No I/O."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sweeper.journal.best import best_trials
from sweeper.journal.state import ENDED, RUNNING, SweepState, TrialState
from sweeper.scheduling.base import Scheduler

LEADERS = 3
"""Best trials that a live view names."""


@dataclass
class Snapshot:
    """What a sweep's progress looks like at one moment; made from the state alone.

    Attributes:
        counts: trials by status.
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
    trials = list(state.trials.values())
    rungs = {
        rung: (
            sum(t.epochs >= rung and t.stop_rung != rung for t in trials),
            sum(t.stop_rung == rung for t in trials),
        )
        for rung in schedule.rungs
    }
    last = schedule.rungs[-1]
    heading = Counter(next((r for r in schedule.rungs if r > t.epochs), last) for t in trials if t.status == RUNNING)
    leaders = best_trials(state, schedule.mode, LEADERS)
    done = sum(t.epochs_trained for t in trials)
    ended = [t for t in trials if t.status in ENDED]
    mean = sum(t.epochs for t in ended) / len(ended) if ended else float(schedule.max_epochs)
    expected = done + sum(max(0.0, mean - t.epochs_trained) for t in trials if t.status not in ENDED)
    towards = {rung: heading[rung] for rung in schedule.rungs}
    return Snapshot(state.count(), rungs, towards, leaders, done - epochs_before, expected - epochs_before, seconds)

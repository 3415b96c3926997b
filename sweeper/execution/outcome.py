"""How a run of a sweep ended, as commands and callers see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.ids import SweepPaths
from sweeper.journal.state import FAILED, SweepState
from sweeper.storage.sweeps import Sweep
from trainables.worker.trial_reports import NON_FINITE


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        sweep: the sweep.
        outcome: `finished`, `stopped` or `interrupted`.
        state: of all trials.
        seconds: wall time of this run, Ray's start included.
        notes: things the user should know, one sentence each.
    """

    sweep: Sweep
    outcome: str
    state: SweepState
    seconds: float
    notes: Sequence[str]

    @property
    def paths(self) -> SweepPaths:
        """The sweep's files."""
        return self.sweep.paths

    @property
    def counts(self) -> Mapping[str, int]:
        """Trials by status."""
        return self.state.count()

    @property
    def unfinished(self) -> int:
        """How many trials a resume would continue with."""
        return len(self.state.unfinished())

    @property
    def retriable(self) -> int:
        """How many failed trials may end otherwise if retried."""
        return retriable(self.state)


def retriable(state: SweepState) -> int:
    """Return how many failed trials may end otherwise if retried; one that diverged diverges again."""
    return sum(trial.stop_kind != NON_FINITE for trial in state.trials.values() if trial.status == FAILED)

"""Options of a run, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweeper.execution.driver.capacity import PATIENCE_SECONDS
from sweeper.journal.state import FAILED, SweepState
from sweeper.reporting.live import Progress, Timings
from sweeper.storage.sweeps import Sweep
from trainables.worker.trial_reports import NON_FINITE


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that are not part of the search space.

    Attributes:
        output: Folder of results folders, or the address of a store.
        address: Address of a Ray cluster; `None` starts one on this machine.
        cpus: Cores to use on this machine; `None` for all.
        executor: `local` for forked processes on this machine, `ray`, or `auto`; see `runner.chosen_executor`.
        tracker: Address of the tracker, see `sweeper.tracking.base`; `None` for none; on resume, `choice.KEPT` for the
            sweep's own.
        failed_too: On resume, run failed trials again.
        rehearse: Apply the file's changes under `rehearsal`, and mark the results.
        discard_damaged: On resume, quarantine the first damaged journal record and all later ones.
        settings: On resume, overrides that do not affect measurements, see `sweeper.storage.sweeps.amended`.
        replicates: On resume, the total number of seeds per configuration; `None` adds none.
        trials: Indices of the trials that get these seeds; empty for all that reached the last epoch.
        wait_for_nodes: Seconds to wait for an autoscaler to start the first node that fits a trial.
        trust: On resume, run the code that came with the sweep's folder.
        progress: Class that displays the run.
        timings: Recorder of each phase's duration.
    """

    output: str | Path
    address: str | None = None
    cpus: int | None = None
    tracker: str | None = None
    rehearse: bool = False
    failed_too: bool = False
    discard_damaged: bool = False
    settings: Sequence[str] = ()
    replicates: int | None = None
    trials: Sequence[int] = ()
    wait_for_nodes: float = PATIENCE_SECONDS
    trust: bool = False
    progress: type[Progress] = Progress
    executor: str = "auto"
    timings: Timings = field(default_factory=Timings)


def retriable(state: SweepState) -> int:
    """Return the number of failed trials that could succeed in a retry."""
    # A trial that diverged would diverge again: a retry uses the same random numbers.
    return sum(trial.stop_kind != NON_FINITE for trial in state.trials.values() if trial.status == FAILED)


@dataclass(frozen=True)
class Outcome:
    """Outcome of a run.

    Attributes:
        sweep: The sweep.
        state: State of all trials.
        seconds: Wall time, including Ray's start.
        outcome: `finished`, `stopped` or `interrupted`.
        notes: Remarks for the user, one sentence each.
        reported: Whether the report could be written.
    """

    sweep: Sweep
    state: SweepState
    seconds: float
    outcome: str
    notes: Sequence[str]
    reported: bool = True

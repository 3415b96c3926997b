"""The end of a driver's work: tables and report are written, and everything that follows the journal catches up."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sweeper.execution.options import RunOptions
from sweeper.execution.outcome import retriable
from sweeper.execution.settled import mark_settled
from sweeper.journal.state import SweepState
from sweeper.monitoring.live import Progress
from sweeper.notifications.notifier import Notifier
from sweeper.storage.mirror import Mirror, SharedFolder
from sweeper.storage.sweeps import Sweep
from sweeper.tables.writer import ParquetSink
from sweeper.tracking.follower import MlflowFollower, patience


@dataclass(frozen=True)
class Ending:
    """What follows when the last trial has ended."""

    sweep: Sweep
    options: RunOptions
    mirror: Mirror | SharedFolder
    tables: ParquetSink
    follower: MlflowFollower
    notifier: Notifier
    progress: Progress
    started: float

    def write(self, state: SweepState, ended: tuple[str, str | None] | None) -> list[str]:
        """Write tables and report, notify of the end, and give MLflow a bounded time; return things to know."""
        options = self.options
        self.progress.stage("writing tables and report")
        self.mirror.collect()
        self.tables.close()
        from sweeper.reporting import write_report  # at the start it would delay the first trial

        write_report(self.sweep.paths.root)
        options.timings.note("tables and report written")
        self.mirror.complete(ended=not state.unfinished())
        if ended is not None:
            self.notifier.ended(*ended)
        if options.tracking_uri is not None:
            self.progress.stage("finishing MLflow logging")
        lacking = self.tables.notes + self.follower.wait(patience(time.monotonic() - self.started))
        notes = lacking + self.notifier.wait()
        options.timings.note("MLflow complete")
        if self.mirror.store is None and not lacking and not state.unfinished():
            mark_settled(self.sweep.paths, state.count(), options.tracking_uri, retriable(state))
        return notes

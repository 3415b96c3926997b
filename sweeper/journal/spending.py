"""What a sweep's own trials have spent: their time, and of it the time of whole GPUs, folded from the journal."""

from __future__ import annotations

from sweeper.journal.records import Record, ReplicateReported, Reported
from trainables.worker.trial_reports import TrialReport


class Spending:
    """Time spent in trials up to their last reports; what was reused from another sweep costs nothing here.

    Each report names the share of a GPU that its process had, since shares differ between trials and grow when memory
    runs out. Reports of release 0.1 do not: their time is counted apart.
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
        elif isinstance(body, Reported) and body.reused is None:
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

"""What a worker hears next, under any executor: which of its trials are over, and which join it.

A worker reports and waits. The driver judges what it reports; then the worker hears which trials are over and, where
trials train together, gets others of the same kind for the lanes that fell free. Where memory ran out, the lanes of all
cohorts are halved.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sweeper.execution.driver.failures import MEMORY, OUT_OF_MEMORY, Failure, classify
from trainables.worker.trial_reports import WorkerCommand, WorkerReport

if TYPE_CHECKING:  # it imports torch, and the process that forks others is started without waiting for that
    from sweeper.execution.driver.driver import Driver


@dataclass(eq=False)
class WorkerSlot:
    """A worker, started or still to start, and what it was given.

    Attributes:
        assignments: that it has in hand.
        room: lanes that are free beside these, as far as it has said.
        kind: of its last trial, see `sweeper.execution.driver.assignments.Assignments.kind_of`.
        share: of a GPU that it has; `None` where trials take nothing of a GPU, or whole ones.
    """

    assignments: list[list[int]] = field(default_factory=list)
    room: int = 0
    kind: str | None = None
    share: float | None = None


class Dispatcher:
    """Turns workers' reports and deaths into the driver's words and records.

    Attributes:
        ending: no trial continues beyond its next report.
        most_lanes: of any cohort; 0 for no limit.
    """

    def __init__(self, driver: Driver, workers: Collection[WorkerSlot]) -> None:
        """Serve the driver's `workers`, a view of those that there are at any time."""
        self._driver, self._workers = driver, workers
        self.ending = False
        self.most_lanes = 0

    def offer(self, kind: str | None, share: float | None = None) -> list[int] | None:
        """Return an assignment for a worker that has none; `None` when there is none to give now.

        Args:
            kind: of the worker's last trial: its like goes first.
            share: of a GPU that the worker has.
        """
        self._count_slots()
        return self._driver.next_for_empty(kind, share)

    def begin(self, worker: WorkerSlot, assignment: list[int], over: Sequence[int] = ()) -> WorkerCommand:
        """Give an assignment to a worker that has none; return what it hears, also of the configurations `over`."""
        return replace(self._command(worker, (), [assignment]), over=tuple(over))

    def on_report(self, worker: WorkerSlot, report: WorkerReport) -> WorkerCommand:
        """Take in what a worker reports; return how it is to continue."""
        told = [(_held(worker, reports[0].configuration), reports, last) for reports, last in report.reports]
        over = self._driver.on_news(told, trained=report.trained)
        for index, kind, text in report.lost:
            worker.assignments.remove([index])
            self._driver.on_failure([index], classify(kind, text))
        if report.gave_up:
            self._shrink(report.most_lanes, worker.assignments)
            worker.assignments = []
        if self.ending:  # what has not reported yet does so after its epoch
            over = [each for each in worker.assignments if each in over or any(each == held for held, *_ in told)]
        worker.assignments = [each for each in worker.assignments if each not in over]
        worker.room = report.room + len(over)
        return self._command(worker, over, self._fill(worker))

    def on_exit(self, worker: WorkerSlot, failure: Failure) -> None:
        """Take back what a worker had in hand that has ended."""
        held, worker.assignments = worker.assignments, []
        if failure.kind in MEMORY and len(held) > 1:
            self._limit(len(held) * self._driver.settings.seeds.count // 2)
        if held:
            self._driver.on_shared_failure(held, failure)

    def _count_slots(self) -> None:
        """Tell the driver how many trials train at once: what a searcher may suggest, and a scheduler promote."""
        if self._driver.settings.together:
            busy = [worker for worker in self._workers if worker.assignments]
            taken = sum(len(worker.assignments) + worker.room for worker in busy)
            self._driver.resize(taken + max(0, self._driver.processes - len(busy)))

    def _fill(self, worker: WorkerSlot) -> list[list[int]]:
        """Return trials for the lanes of a worker that are free."""
        held, new = worker.assignments, list[list[int]]()
        if self.ending or not held or any(self._driver.is_suspect(index) for (index, *_) in held):
            return new
        self._count_slots()
        while len(new) < worker.room and (found := self._driver.next_of_kind(worker.kind, worker.share)) is not None:
            new.append(found)
        return new

    def _command(self, worker: WorkerSlot, over: Sequence[Sequence[int]], new: list[list[int]]) -> WorkerCommand:
        """Give a worker trials, without what is over; return what it hears."""
        given = tuple(self._driver.describe(assignment) for assignment in new)
        worker.assignments += new
        worker.room = 0  # beside its first trial, before it has said how many: it answers before it trains
        for assignment in new:
            if self._driver.settings.together:
                worker.kind = self._driver.kind_of(assignment[0])
            self._driver.on_started(assignment)
        ended = tuple(index for assignment in over for index in assignment[:1])
        return WorkerCommand(ended, given, self.most_lanes, report_all=self.ending)

    def _shrink(self, lanes: int, given_up: Sequence[Sequence[int]]) -> None:
        """Halve all cohorts, for memory ran out in one; its trials continue from their checkpoints."""
        self._limit(lanes)
        reason = f"the cohort's memory ran out: it continues with {self.most_lanes} lanes"
        for assignment in sorted(given_up, key=list, reverse=True):
            self._driver.on_failure(assignment, Failure(OUT_OF_MEMORY, reason, counts=False))

    def _limit(self, lanes: int) -> None:
        """Let no cohort have more lanes from now on; a limit is never raised."""
        self.most_lanes = min(filter(None, (self.most_lanes, lanes)))


def _held(worker: WorkerSlot, configuration: int) -> list[int]:
    """Return the assignment of a worker that a configuration belongs to."""
    return next(assignment for assignment in worker.assignments if configuration in assignment)

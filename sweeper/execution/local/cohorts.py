"""The loop that serves processes whose trials train together, on this machine without Ray.

A process stands still while the driver judges what it reported: then it hears which of its trials are over, and gets
others of the same kind for the lanes that fell free. A process without trials takes the next trial of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection

from sweeper.execution.driver.cohort_driver import CohortDriver
from sweeper.execution.driver.failures import MEMORY, OUT_OF_MEMORY, Failure, classify
from sweeper.execution.local.processes import ForkServer, TrialProcess
from sweeper.execution.local.serving import ServingLoop
from trainables.worker.cohort_process import WorkerCommand, WorkerReport
from trainables.worker.local_process import WorkerInit

UNKNOWN_ROOM = 0
"""Lanes that a process has beside its first trial, before it has said how many: it answers before it trains."""


class CohortLoop(ServingLoop):
    """The processes at work, each with its trials, and those that wait for some."""

    def __init__(
        self,
        driver: CohortDriver,
        server: ForkServer,
        opening: WorkerInit,
        slots: int,
        winding_down: Callable[[], object] = lambda: None,
    ) -> None:
        """Run the driver's trials in up to `slots` processes."""
        super().__init__(driver, server, replace(opening, together=True), slots, winding_down)
        self._cohorts = driver
        self._trials: dict[Connection, list[int]] = {}
        self._room: dict[Connection, int] = {}
        self._kinds: dict[Connection, str | None] = {}
        self._most_lanes = 0

    def start(self) -> None:
        """Give trials to processes that have none."""
        self._count_slots()
        while len(self.busy) < self._slots and (index := self._cohorts.next_for_empty()) is not None:
            process = self.idle.pop() if self.idle else self.fork()
            self.busy[process.connection] = process
            self._trials[process.connection] = []
            self._order(process, (), [index])

    def on_message(self, process: TrialProcess) -> None:
        """Take a process's news and tell it how to continue."""
        report: WorkerReport | None = self.receive(process)
        if report is None:
            return
        own = self._trials[process.connection]
        over = self._cohorts.on_news(report.reports, trained=report.trained)
        for index, kind, text in report.lost:
            own.remove(index)
            self._cohorts.on_failure([index], classify(kind, text))
        if report.gave_up:
            self._shrink(report.most_lanes, own)
            own.clear()
        if self.ending:  # what has not reported yet does so after its epoch
            over = sorted({*over, *(each.configuration for each, _ in report.reports)} & {*own})
        for index in over:
            own.remove(index)
        self._room[process.connection] = report.room + len(over)
        self._go_on(process, over)

    def on_exit(self, process: TrialProcess, failure: Failure) -> None:
        """Give up a process that has ended, and what it had in hand."""
        del self.busy[process.connection]
        own = self._trials.pop(process.connection)
        for known in (self._room, self._kinds):
            known.pop(process.connection, None)
        process.connection.close()
        if failure.kind in MEMORY and len(own) > 1:
            self._limit(len(own) * self._cohorts.replicates // 2)
        if own:
            self._cohorts.on_shared_failure(own, failure)

    def _go_on(self, process: TrialProcess, over: list[int]) -> None:
        """Fill the lanes that are free, and let the process train; without a trial it rests."""
        own = self._trials[process.connection]
        new = self._fill(process, own)
        if own or new:
            self._order(process, over, new)
            return
        process.send(WorkerCommand(tuple(over)))
        if self.receive(process) is not None:
            del self.busy[process.connection], self._trials[process.connection], self._room[process.connection]
            self.idle.append(process)

    def _fill(self, process: TrialProcess, own: list[int]) -> list[int]:
        """Return trials for the lanes of a process that are free."""
        if self.ending or any(self._cohorts.is_suspect(index) for index in own):
            return []
        if not own:
            index = self._cohorts.next_for_empty(self._kinds.get(process.connection))
            return [] if index is None else [index]
        self._count_slots()
        new: list[int] = []
        kind = self._cohorts.kind_of(own[0])
        while len(new) < self._room[process.connection] and (index := self._cohorts.next_of_kind(kind)) is not None:
            new.append(index)
        return new

    def _order(self, process: TrialProcess, over: list[int] | tuple[()], new: list[int]) -> None:
        fields = [self._cohorts.describe([index])[0] for index in new]
        # A process that cannot take it has ended: that shows as the end of its connection.
        process.send(WorkerCommand(tuple(over), tuple(fields), self._most_lanes, report_all=self.ending))
        self._trials[process.connection] += new
        self._room[process.connection] = UNKNOWN_ROOM
        for index in new:
            self._kinds[process.connection] = self._cohorts.kind_of(index)
            self._cohorts.on_started([index])

    def _shrink(self, lanes: int, given_up: Sequence[int]) -> None:
        """Halve all cohorts, for memory ran out in one; its trials continue from their checkpoints."""
        self._limit(lanes)
        reason = f"the cohort's memory ran out: it continues with {self._most_lanes} lanes"
        for index in sorted(given_up, reverse=True):
            self._cohorts.on_failure([index], Failure(OUT_OF_MEMORY, reason, counts=False))

    def _limit(self, lanes: int) -> None:
        """Let no cohort have more lanes from now on; a limit is never raised."""
        self._most_lanes = min(filter(None, (self._most_lanes, lanes)))

    def _count_slots(self) -> None:
        """Tell the driver how many trials train at once: what a searcher may suggest, and a scheduler promote."""
        taken = sum(len(trials) for trials in self._trials.values())
        unopened = self._slots - len(self.busy)
        self._cohorts.resize(taken + sum(self._room[each] for each in self.busy) + unopened)

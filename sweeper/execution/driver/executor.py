"""What an executor is: it finds out what there is for trials, and runs a driver's assignments on it.

The driver decides; an executor starts workers, passes their reports and deaths on, and ends when nothing is left or a
stop is asked for. What a worker does is the same everywhere: it is a `trainables.worker.workers.Worker`, or a
`CohortWorker` where trials train together, and follows the messages of `trainables.worker.trial_reports`.

A worker reports and waits. The driver judges what it reports; then the worker hears from a `Dispatcher` which trials
are over and, where trials train together, gets others of the same kind for the lanes that fell free. Where memory ran
out, the lanes of all cohorts are halved.

To add an executor, write `sweeper/execution/<name>.py`, or a folder of that name; `--executor <name>` chooses it::

    class Inline(Executor):
        name = "inline"

        @contextmanager
        def session(self, job: Job) -> Iterator[Session]:
            resources = {"cpu": 1.0, "gpu": 0.0}
            yield Session(resources, 1, partial(execute, settings=job.settings(resources)))

    def execute(driver: Driver, settings: TrialSettings) -> None:
        slot, worker = WorkerSlot(), Worker(settings)
        dispatcher = Dispatcher(driver, [slot])
        while (assignment := dispatcher.offer(None)) is not None:
            command = dispatcher.begin(slot, assignment)
            while slot.assignments:
                command = dispatcher.on_report(slot, worker.follow(command) or WorkerReport())

    EXECUTOR = Inline
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from sweeper.core.errors import SweeperError
from sweeper.execution.driver.context import NO_SHARES, Shares, Sink
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.judging import MEMORY, OtherNodes, waits
from sweeper.execution.driver.steering import Controller, Interrupts
from sweeper.reporting.live import Progress
from sweeper.reporting.snapshot import MetricsSink, Publish
from sweeper.space.parts import Resources
from sweeper.storage.sweeps import Sweep
from trainables.worker.trial_reports import OUT_OF_MEMORY, Failure, WorkerCommand, WorkerReport
from trainables.worker.trial_settings import TrialSettings

if TYPE_CHECKING:
    from sweeper.execution.fork_server import ForkServer
    from sweeper.execution.options import RunOptions


@dataclass(frozen=True)
class Job:
    """What an executor is told of a sweep.

    Attributes:
        sweep: whose trials are to run.
        progress: takes sentences for the user.
        interrupts: what is told of Ctrl-C.
        settings: returns the settings of all trials, from a worker's resources.
        metrics: returns a sink of the sweep's metrics, from what publishes them and a trial's resources.
    """

    sweep: Sweep
    progress: Progress
    interrupts: Interrupts
    settings: Callable[[dict[str, float]], TrialSettings]
    metrics: Callable[[Publish, Mapping[str, float]], MetricsSink]

    def most_lanes(self, slots: int) -> int:
        """Return how many lanes the sweep could fill in each of so many processes, of which there is one at least."""
        return -(-len(self.sweep.configurations) * self.sweep.spec.replicates.count // max(1, slots))


@dataclass(frozen=True)
class Session:
    """What an executor offers once it is known how much fits.

    Attributes:
        resources: of one worker of a trial.
        slots: trials that run at once.
        execute: runs a driver's assignments to the end.
        controllers: that the driver asks on every turn.
        sinks: that take every record.
        shares: of a GPU.
        other_nodes: whether there are nodes for trials besides those whose disks are full.
    """

    resources: Mapping[str, float]
    slots: int
    execute: Callable[[Driver], object]
    controllers: Sequence[Controller] = ()
    sinks: Sequence[Sink] = ()
    shares: Shares = NO_SHARES
    other_nodes: OtherNodes = lambda nodes: False


class Executor(ABC):
    """Where trials run; its module calls the class `EXECUTOR`.

    Attributes:
        name: as users know it.
        options: of the run.
        server: forks trial processes, where one was started.
    """

    name: ClassVar[str]

    def __init__(self, options: RunOptions, server: ForkServer | None = None) -> None:
        """Prepare for a run; nothing is started yet."""
        self.options, self.server = options, server

    def require(self, resources: Resources) -> None:  # noqa: B027 - most can do whatever is asked for
        """Raise SweeperError where the run asks for what this cannot do."""

    def check(self, resources: Resources) -> None:  # noqa: B027 - most find out in a session alone
        """Raise SweeperError where it is plain beforehand that no trial can start: nobody answers, or none would fit.

        What only a cluster itself can tell is left to it.
        """

    @abstractmethod
    def session(self, job: Job) -> AbstractContextManager[Session]:
        """Give what there is for a sweep's trials; what was started for them ends with this.

        Raises SweeperError where no trial could ever start.
        """


def executor_named(name: str) -> type[Executor]:
    """Return the executor of a name. Raises SweeperError where there is none."""
    module = f"sweeper.execution.{name}"
    if name.isidentifier() and importlib.util.find_spec(module) is not None:
        found: type[Executor] | None = getattr(importlib.import_module(module), "EXECUTOR", None)
        if found is not None:
            return found
    raise SweeperError(f"there is no executor {name!r}", "choose auto, local or ray")


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
        self._driver, self._work, self._workers = driver, driver.work, workers
        self.ending = False
        self.most_lanes = 0

    def offer(self, kind: str | None, share: float | None = None) -> list[int] | None:
        """Return an assignment for a worker that has none; `None` when there is none to give now.

        Args:
            kind: of the worker's last trial: its like goes first.
            share: of a GPU that the worker has.
        """
        self._count_slots()
        return self._work.next_for_empty(kind, share)

    def begin(self, worker: WorkerSlot, assignment: list[int], over: Sequence[int] = ()) -> WorkerCommand:
        """Give an assignment to a worker that has none; return what it hears, also of the configurations `over`."""
        return replace(self._command(worker, (), [assignment]), over=tuple(over))

    def on_report(self, worker: WorkerSlot, report: WorkerReport) -> WorkerCommand:
        """Take in what a worker reports; return how it is to continue."""
        told = [(_held(worker, reports[0].configuration), reports, last) for reports, last in report.reports]
        over = self._driver.on_news(told, trained=report.trained)
        for index, failure in report.lost:
            worker.assignments.remove([index])
            self._driver.on_failure([index], failure)
        if report.gave_up:
            # Memory ran out: all cohorts are halved, and its trials continue from their checkpoints.
            self._limit(report.most_lanes)
            failure = Failure(OUT_OF_MEMORY, {"lanes": self.most_lanes}, counts=False)
            for assignment in sorted(worker.assignments, key=list, reverse=True):
                self._driver.on_failure(assignment, failure)
            worker.assignments = []
        if self.ending:  # what has not reported yet does so after its epoch
            over = [each for each in worker.assignments if each in over or any(each == held for held, *_ in told)]
        worker.assignments = [each for each in worker.assignments if each not in over]
        worker.room = report.room + len(over)
        return self._command(worker, over, self._fill(worker))

    def on_exit(self, worker: WorkerSlot, failure: Failure) -> None:
        """Take back what a worker had in hand that has ended."""
        held, worker.assignments = worker.assignments, []
        if failure.kind in MEMORY and not waits(failure) and len(held) > 1:
            self._limit(len(held) * self._driver.settings.seeds.count // 2)
        if held:
            self._driver.on_shared_failure(held, failure)

    def _count_slots(self) -> None:
        """Tell the driver how many trials train at once: what a searcher may suggest, and a scheduler promote."""
        if self._driver.settings.together:
            busy = [worker for worker in self._workers if worker.assignments]
            taken = sum(len(worker.assignments) + worker.room for worker in busy)
            self._work.resize(taken + max(0, self._work.processes - len(busy)))

    def _fill(self, worker: WorkerSlot) -> list[list[int]]:
        """Return trials for the lanes of a worker that are free."""
        held, new = worker.assignments, list[list[int]]()
        if self.ending or not held or any(self._work.is_suspect(index) for (index, *_) in held):
            return new
        self._count_slots()
        while len(new) < worker.room and (found := self._work.next_of_kind(worker.kind, worker.share)) is not None:
            new.append(found)
        return new

    def _command(self, worker: WorkerSlot, over: Sequence[Sequence[int]], new: list[list[int]]) -> WorkerCommand:
        """Give a worker trials, without what is over; return what it hears."""
        given = tuple(self._work.describe(assignment) for assignment in new)
        worker.assignments += new
        worker.room = 0  # beside its first trial, before it has said how many: it answers before it trains
        for assignment in new:
            if self._driver.settings.together:
                worker.kind = self._work.kind_of(assignment[0])
            self._driver.on_started(assignment)
        ended = tuple(index for assignment in over for index in assignment[:1])
        return WorkerCommand(ended, given, self.most_lanes, report_all=self.ending)

    def _limit(self, lanes: int) -> None:
        """Let no cohort have more lanes from now on; a limit is never raised."""
        self.most_lanes = min(filter(None, (self.most_lanes, lanes)))


def _held(worker: WorkerSlot, configuration: int) -> list[int]:
    """Return the assignment of a worker that a configuration belongs to."""
    return next(assignment for assignment in worker.assignments if configuration in assignment)

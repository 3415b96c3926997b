"""Base class of executors, which find resources for trials and run a driver's assignments on them.

The driver decides; an executor starts workers, passes on their reports and exits, and ends when no trial is left or a
stop is requested. A worker is the same everywhere: a `trainables.worker.workers.Worker`, or a `CohortWorker` if trials
train in cohorts, which follows the messages of `trainables.worker.trial_reports`.

A worker reports and waits. The driver judges its report. Then a `Dispatcher` tells the worker which trials are over
and, in cohorts, gives it further trials of the same kind for free lanes. If memory runs out, the lanes of all cohorts
are halved.

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
from sweeper.space.spec import Resources
from sweeper.storage.sweeps import Sweep
from trainables.worker.trial_reports import OUT_OF_MEMORY, Failure, WorkerCommand, WorkerReport
from trainables.worker.trial_settings import TrialSettings

if TYPE_CHECKING:
    from sweeper.execution.options import RunOptions


@dataclass(frozen=True)
class Job:
    """The sweep settings that an executor needs.

    Attributes:
        sweep: The sweep.
        progress: Display of sentences for the user.
        interrupts: Counter of Ctrl-C presses.
        settings: Function from a worker's resources to the settings of all trials.
        metrics: Function from a publisher and a trial's resources to a sink of the sweep's metrics.
    """

    sweep: Sweep
    progress: Progress
    interrupts: Interrupts
    settings: Callable[[dict[str, float]], TrialSettings]
    metrics: Callable[[Publish, Mapping[str, float]], MetricsSink]

    def most_lanes(self, slots: int) -> int:
        """Return how many lanes the sweep could fill in each of `slots` processes (at least one)."""
        return -(-len(self.sweep.configurations) * self.sweep.spec.replicates.count // max(1, slots))


@dataclass(frozen=True)
class Session:
    """The resources of an executor and its function to run assignments.

    Attributes:
        resources: Resources of one worker, `{"cpu": …, "gpu": …}`.
        slots: Number of trials that run at once.
        execute: Function that runs a driver's assignments to the end.
        controllers: Controllers that the driver calls on every turn.
        sinks: Receivers of every record.
        shares: GPU fraction per trial.
        other_nodes: Function that returns whether a node for trials has free disk space.
    """

    resources: Mapping[str, float]
    slots: int
    execute: Callable[[Driver], object]
    controllers: Sequence[Controller] = ()
    sinks: Sequence[Sink] = ()
    shares: Shares = NO_SHARES
    other_nodes: OtherNodes = lambda nodes: False


class Executor(ABC):
    """Runs trials; a module in `sweeper.execution` exports its subclass as `EXECUTOR`.

    Attributes:
        name: Value of `--executor`.
        options: Options of the run.

    Examples:
        >>> from sweeper.execution.options import RunOptions
        >>> local = executor_named("local")(RunOptions("results", cpus=2))
        >>> local.name
        'local'
        >>> local.require(Resources(gpu=1))
        Traceback (most recent call last):
        ...
        sweeper.core.errors.SweeperError: resources.gpu = 1.0, but the local executor does not allocate GPUs
        ...
    """

    name: ClassVar[str]

    def __init__(self, options: RunOptions) -> None:
        """Prepare for a run without starting anything."""
        self.options = options

    def require(self, resources: Resources) -> None:  # noqa: B027 - most executors accept every request
        """Raise SweeperError if the run requests something that this executor cannot do."""

    def check(self, resources: Resources) -> None:  # noqa: B027 - most executors can check only in a session
        """Raise SweeperError if no trial can run, as far as this is known before the start.

        For example, no cluster answers or no trial fits. Checks that need the cluster itself belong in `session`.
        """

    @abstractmethod
    def session(self, job: Job) -> AbstractContextManager[Session]:
        """Acquire resources for a sweep's trials; the context's end stops everything that was started for them.

        Raises SweeperError if no trial could ever start.
        """


def executor_named(name: str) -> type[Executor]:
    """Return the executor class of a name. Raises SweeperError if there is none."""
    module = f"sweeper.execution.{name}"
    # Find the module before importing it: an ImportError inside an executor must not be reported as "no executor".
    if name.isidentifier() and importlib.util.find_spec(module) is not None:
        executor: type[Executor] | None = getattr(importlib.import_module(module), "EXECUTOR", None)
        if executor is not None:  # other modules of the folder, such as `options`, are no executors
            return executor
    raise SweeperError(f"there is no executor {name!r}", "choose auto, local or ray")


@dataclass(eq=False)
class WorkerSlot:
    """A worker, which runs or is yet to be started, and its assignments.

    Attributes:
        assignments: Assignments in flight on this worker.
        room: Further free lanes, as last reported.
        kind: Kind of its last trial, see `sweeper.execution.driver.assignments.Assignments.kind_of`.
        share: GPU share of the worker; `None` if trials use no GPU or whole GPUs.
    """

    assignments: list[list[int]] = field(default_factory=list)
    room: int = 0
    kind: str | None = None
    share: float | None = None


class Dispatcher:
    """Translates between workers' messages and the driver.

    Attributes:
        ending: Whether trials stop at their next report.
        most_lanes: Most lanes of a cohort; 0 for no limit.
    """

    def __init__(self, driver: Driver, workers: Collection[WorkerSlot]) -> None:
        """Serve a driver; `workers` is a live view of its workers."""
        self._driver, self._work, self._workers = driver, driver.work, workers
        self.ending = False
        self.most_lanes = 0

    def offer(self, kind: str | None, share: float | None = None) -> list[int] | None:
        """Return an assignment for a worker that has none; `None` if there is none now.

        Args:
            kind: Kind of the worker's last trial; trials of the same kind come first.
            share: GPU share of the worker.
        """
        self._count_slots()
        return self._work.next_for_empty(kind, share)

    def begin(self, worker: WorkerSlot, assignment: list[int], over: Sequence[int] = ()) -> WorkerCommand:
        """Give an assignment to a worker that has none; return its command, which also names ended configurations."""
        return replace(self._command(worker, (), [assignment]), over=tuple(over))

    def on_report(self, worker: WorkerSlot, report: WorkerReport) -> WorkerCommand:
        """Process a worker's report; return its next command."""
        reported = [(_held(worker, reports[0].configuration), reports, last) for reports, last in report.reports]
        over = self._driver.on_reports(reported, trained=report.trained)
        for index, failure in report.lost:
            worker.assignments.remove([index])
            self._driver.on_failure([index], failure)
        if report.gave_up:
            # Memory ran out: all cohorts are halved, and this worker's trials continue from their checkpoints.
            self._limit(report.most_lanes)
            failure = Failure(OUT_OF_MEMORY, {"lanes": self.most_lanes}, counts=False)
            for assignment in sorted(worker.assignments, key=list, reverse=True):
                self._driver.on_failure(assignment, failure)
            worker.assignments = []
        if self.ending:  # trials that have not reported yet still finish their epoch
            over = [own for own in worker.assignments if own in over or any(own == held for held, *_ in reported)]
        worker.assignments = [own for own in worker.assignments if own not in over]
        worker.room = report.room + len(over)
        return self._command(worker, over, self._fill(worker))

    def on_exit(self, worker: WorkerSlot, failure: Failure) -> None:
        """Return the assignments of a worker that has ended to the driver."""
        held, worker.assignments = worker.assignments, []
        if failure.kind in MEMORY and not waits(failure) and len(held) > 1:
            self._limit(len(held) * self._driver.settings.seeds.count // 2)
        if held:
            self._driver.on_shared_failure(held, failure)

    def _count_slots(self) -> None:
        """Update how many trials train at once, which limits suggestions and promotions."""
        if self._driver.settings.together:
            busy = [worker for worker in self._workers if worker.assignments]
            taken = sum(len(worker.assignments) + worker.room for worker in busy)
            self._work.resize(taken + max(0, self._work.processes - len(busy)))

    def _fill(self, worker: WorkerSlot) -> list[list[int]]:
        """Return trials for a worker's free lanes."""
        held, new = worker.assignments, list[list[int]]()
        if self.ending or not held or any(self._work.is_suspect(index) for (index, *_) in held):
            return new
        self._count_slots()
        while len(new) < worker.room and (more := self._work.next_of_kind(worker.kind, worker.share)) is not None:
            new.append(more)
        return new

    def _command(self, worker: WorkerSlot, over: Sequence[Sequence[int]], new: list[list[int]]) -> WorkerCommand:
        """Add trials to a worker and return its command; `over` are assignments that it has to drop."""
        given = tuple(self._work.describe(assignment) for assignment in new)
        worker.assignments += new
        worker.room = 0  # unknown until it has built its first trial; it reports the number before it trains
        for assignment in new:
            if self._driver.settings.together:
                worker.kind = self._work.kind_of(assignment[0])
            self._driver.on_started(assignment)
        ended = tuple(index for assignment in over for index in assignment[:1])
        return WorkerCommand(ended, given, self.most_lanes, report_all=self.ending)

    def _limit(self, lanes: int) -> None:
        """Limit the lanes of all cohorts from now on; a limit is never raised again."""
        self.most_lanes = min(filter(None, (self.most_lanes, lanes)))


def _held(worker: WorkerSlot, configuration: int) -> list[int]:
    """Return the worker's assignment that contains a configuration."""
    return next(assignment for assignment in worker.assignments if configuration in assignment)

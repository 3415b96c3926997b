"""The local executor: runs assignments in forked processes on this machine, with one loop and no threads.

The loop gets assignments from the driver and passes reports and exits to it. It ends when no trial is left or a stop is
requested. For `sweeper.execution.ray.executor`, Ray Tune does the same. A process waits while the driver judges its
report, and then gets the decision (`sweeper.execution.driver.executor`). A process without trials waits for an
assignment.

SIGTERM ends the loop after the current turn, so that no record is half written. Ctrl-C ends it after each trial's
current epoch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import psutil
import torch

from sweeper.core.errors import SweeperError
from sweeper.core.processes import prepare
from sweeper.execution.driver.capacity import ClusterView, fit_resources
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Dispatcher, Executor, Job, Session, WorkerSlot
from sweeper.execution.driver.judging import memory_failure
from sweeper.execution.driver.steering import Interrupts
from sweeper.execution.trial_processes import TrialProcess, fork
from sweeper.space.spec import Resources
from trainables.files.container import fullest_memory, usable_cores
from trainables.worker.hang_watchdog import ended_by
from trainables.worker.trial_reports import Failure, WorkerFailed, WorkerInit

#: Most seconds that the loop waits for processes before it attends to the driver's other duties.
TURN_SECONDS = 0.2

#: Most seconds to wait for a process that writes a last checkpoint; a store can be out of reach for 120 s.
LEAVE_SECONDS = 150.0

#: Ray's environment variable for the memory threshold; it also replaces `MOST_MEMORY`.
THRESHOLD_VARIABLE = "RAY_memory_usage_threshold"

#: The largest trial process is ended if more than this fraction of the machine's or container's memory is used, as Ray
#: does on its nodes. Otherwise the kernel would kill any process, possibly the driver.
MOST_MEMORY = 0.95


def this_machine(cpus: int | None) -> ClusterView:
    """Return this machine's resources for trials: `cpus` cores, or all that this process can use."""
    return ClusterView(({"CPU": float(cpus or usable_cores())},))


def takes_cards(resources: Resources) -> bool:
    """Return whether trials take GPUs."""
    return torch.cuda.is_available() if resources.gpu == "auto" else resources.gpu > 0


class LocalExecutor(Executor):
    """Forked processes of this machine."""

    name = "local"

    def require(self, resources: Resources) -> None:
        """Raise SweeperError if a cluster is named or trials need GPUs."""
        if self.options.address is not None:
            raise SweeperError(
                f"the executor is local, but the cluster is {self.options.address}",
                "omit --executor local, or --ray (and unset RAY_ADDRESS)",
            )
        if takes_cards(resources):
            raise SweeperError(
                f"resources.gpu = {resources.gpu}, but the local executor does not allocate GPUs",
                "omit --executor local, or train on the CPU: --set resources.gpu=0",
            )

    def check(self, resources: Resources) -> None:
        """Raise SweeperError if no trial fits on this machine."""
        fit_resources(resources, this_machine(self.options.cpus))

    @contextmanager
    def session(self, job: Job) -> Iterator[Session]:
        """Yield a session with this machine's cores."""
        spec = job.sweep.spec
        resources, slots = fit_resources(spec.resources, this_machine(self.options.cpus))
        prepare(None)  # a searcher imports Ray
        settings = replace(job.settings(resources), most_lanes=job.most_lanes(slots))
        opening = WorkerInit(settings, str(job.sweep.paths.log), spec.replicates.together)

        def execute(driver: Driver) -> None:
            Loop(driver, opening, slots).run(job.interrupts)

        yield Session(resources, slots, execute)


EXECUTOR = LocalExecutor


@dataclass(eq=False, kw_only=True)  # compared by identity: two workers can have equal assignments
class ForkedWorker(WorkerSlot):
    """A forked process and its assignments."""

    process: TrialProcess


@dataclass(eq=False)
class Loop:
    """Busy processes with their trials, and idle processes.

    Attributes:
        driver: Driver that assigns trials.
        opening: First message to each process.
        slots: Most processes at a time.
        fork: Function that starts a process.
        busy: Workers with trials, by the connection to their process.
        idle: Workers without trials, some of which still write the last checkpoint of their previous trial.
        dispatcher: Translator between workers and driver.
    """

    driver: Driver
    opening: WorkerInit
    slots: int
    fork: Callable[[WorkerInit], TrialProcess] = fork

    def __post_init__(self) -> None:
        """Begin without processes."""
        self._memory_seen = -TURN_SECONDS
        self.busy: dict[Connection, ForkedWorker] = {}
        self.idle: list[ForkedWorker] = []
        self.dispatcher = Dispatcher(self.driver, self.busy.values())

    def run(self, pressed: Interrupts) -> None:
        """Run the driver's assignments until none is left or a stop is requested.

        After one Ctrl-C, counted by `pressed`, trials finish their epoch; after two they end at once.
        """
        should_stop = self.driver.steering.should_stop
        try:
            while not pressed.presses and not should_stop() and self.turn():
                pass
            while pressed.presses == 1 and not should_stop() and self.finish_epochs():
                pass
            self.dismiss(lambda: pressed.presses > 1)
        finally:
            self.end()

    def turn(self) -> bool:
        """Assign trials, wait for messages and pass them on; return whether anything is left to do."""
        self.start()
        if self.busy:
            self._hear()
            self._spare_memory()
        elif not self.driver.work.exhausted:
            time.sleep(TURN_SECONDS)  # trials are left, but none can start yet; do not spin
        self.driver.flush()
        return bool(self.busy) or not self.driver.work.exhausted

    def finish_epochs(self) -> bool:
        """Take the next reports and let no process continue; return whether any is still in its epoch."""
        self.dispatcher.ending = True
        self._hear()
        self.driver.flush()
        return bool(self.busy)

    def dismiss(self, hurried: Callable[[], bool]) -> None:
        """Wait for idle processes to end: one may still be writing the checkpoint of its previous trial."""
        leaving = [worker.process.connection for worker in self.idle if worker.process.send(None)]
        deadline = time.monotonic() + LEAVE_SECONDS
        while leaving and not hurried() and time.monotonic() < deadline:
            ended = wait(leaving, TURN_SECONDS)
            leaving = [connection for connection in leaving if connection not in ended]

    def end(self) -> None:
        """Kill all processes; a resume continues their trials from checkpoints."""
        for worker in (*self.busy.values(), *self.idle):
            worker.process.kill()
        self.busy.clear()
        self.idle.clear()

    def start(self) -> None:
        """Assign trials to idle or new processes while there are slots and trials."""
        while len(self.busy) < self.slots:
            assignment = self.dispatcher.offer(self.idle[-1].kind if self.idle else None)
            if assignment is None:
                return
            worker = self._waiting_worker() or ForkedWorker(process=self.fork(self.opening))
            self.busy[worker.process.connection] = worker
            worker.process.send(self.dispatcher.begin(worker, assignment))

    def on_message(self, worker: ForkedWorker) -> None:
        """Pass a worker's report, or its exit, to the driver, and send the decision back.

        If sending fails, the process has ended; the end of its connection shows that in the next turn.
        """
        try:
            message: Any = worker.process.connection.recv()
        except (EOFError, ConnectionResetError):
            self.on_exit(worker, ended_by(worker.process.exit_code()))
            return
        if isinstance(message, WorkerFailed):
            worker.process.exit_code()
            self.on_exit(worker, message.failure)
        elif worker.process.send(self.dispatcher.on_report(worker, message)) and not worker.assignments:
            del self.busy[worker.process.connection]
            self.idle.append(worker)

    def on_exit(self, worker: ForkedWorker, failure: Failure) -> None:
        """Drop a worker whose process has ended, and return its trials to the driver."""
        del self.busy[worker.process.connection]
        worker.process.connection.close()
        self.dispatcher.on_exit(worker, failure)

    def _hear(self) -> None:
        for ready in wait(list(self.busy), TURN_SECONDS):
            self.on_message(self.busy[cast(Connection, ready)])

    def _waiting_worker(self) -> ForkedWorker | None:
        """Return an idle worker that is still alive; `None` if there is none."""
        while self.idle:
            worker = self.idle.pop()
            # An idle worker never sends anything, so its connection is readable only if it has ended. It had no trial
            # to lose.
            if not worker.process.connection.poll():
                return worker
            worker.process.kill()
        return None

    def _spare_memory(self) -> None:
        """Kill the largest process if memory is about to run out; check at most once per turn's time."""
        if not self.busy or time.monotonic() - self._memory_seen < TURN_SECONDS:
            return
        self._memory_seen = time.monotonic()
        used, total = fullest_memory()
        if used < total * float(os.environ.get(THRESHOLD_VARIABLE, MOST_MEMORY)):
            return
        largest = max(self.busy.values(), key=_resident)
        size = _resident(largest)
        largest.process.kill()
        failure = memory_failure(size / used, gib=size / 2**30, taken=used / total, total=total / 2**30)
        self.on_exit(largest, failure)


def _resident(worker: ForkedWorker) -> int:
    try:
        return int(psutil.Process(worker.process.pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0

"""The inline executor: trials run in the driver's own process, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Dispatcher, Executor, Job, Session, WorkerSlot
from trainables.worker.trial_reports import WorkerReport
from trainables.worker.trial_settings import TrialSettings
from trainables.worker.workers import Worker


class Inline(Executor):
    """This process."""

    name = "inline"

    @contextmanager
    def session(self, job: Job) -> Iterator[Session]:
        """Give one core."""
        resources = {"cpu": 1.0, "gpu": 0.0}
        yield Session(resources, 1, partial(execute, settings=job.settings(resources)))


def execute(driver: Driver, settings: TrialSettings) -> None:
    """Run the driver's assignments."""
    slot, worker = WorkerSlot(), Worker(settings)
    dispatcher = Dispatcher(driver, [slot])
    while (assignment := dispatcher.offer(None)) is not None:
        command = dispatcher.begin(slot, assignment)
        while slot.assignments:
            command = dispatcher.on_report(slot, worker.follow(command) or WorkerReport())


EXECUTOR = Inline

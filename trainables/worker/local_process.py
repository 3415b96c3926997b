"""A trial process of a sweep on this machine without Ray: takes assignments, sends reports, one after the other.

It talks to the driver's process through one connection: first the settings come, then for each assignment the reports
of one step after another go, each of which waits for the driver's word whether to continue. All words are plain values.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

from threadpoolctl import threadpool_limits

from trainables.worker.assignments import Assignments
from trainables.worker.cohort_process import CohortProcess
from trainables.worker.rank_process import forked_crew
from trainables.worker.trial_reports import TrialReport
from trainables.worker.trial_settings import Assignment, TrialSettings


@dataclass(frozen=True)
class Reports:
    """What a step gave.

    Attributes:
        reports: of at least one configuration.
        exhausted: the assignment has no more.
    """

    reports: tuple[TrialReport, ...]
    exhausted: bool


@dataclass(frozen=True)
class WorkerFailed:
    """The exception that ended the process: its class and its text, the last line naming the cause."""

    type_name: str
    text: str


@dataclass(frozen=True)
class WorkerInit:
    """The first message to a process.

    Attributes:
        settings: `TrialSettings` of all trials, as plain values.
        log: the file that takes what libraries print.
        together: trials train as a cohort, by the messages of `trainables.worker.cohort_process`.
    """

    settings: Mapping[str, object]
    log: str
    together: bool = False


def work(connection: Connection) -> None:
    """Serve assignments until the driver has no more, or is gone."""
    try:
        opening: WorkerInit = connection.recv()
        _write_to(opening.log)
        settings = TrialSettings.from_mapping(opening.settings)
        crew = forked_crew(settings, connection) if settings.workers > 1 else None
        threadpool_limits(settings.threads)  # of numpy's products; torch has its own number
        if opening.together:
            _train_together(CohortProcess(settings), connection)
            return
        process = Assignments(settings, crew=crew)
        while (assignment := connection.recv()) is not None:
            process.take(Assignment(*fields) for fields in assignment)
            _train(process, connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the driver is gone
    except Exception as error:
        traceback.print_exception(error)
        connection.send(WorkerFailed(type(error).__name__, f"{type(error).__name__}: {error}"))


def _train(process: Assignments, connection: Connection) -> None:
    """Train an assignment up to its end, or until the driver says that it is over."""
    while True:
        reports, exhausted = process.step()
        connection.send(Reports(tuple(reports), exhausted))
        if not connection.recv():
            process.leave()
            return


def _train_together(process: CohortProcess, connection: Connection) -> None:
    """Follow the driver's orders until there are none."""
    while (orders := connection.recv()) is not None:
        connection.send(process.follow(orders))


def _write_to(log: str) -> None:
    """Send what libraries print to the sweep's log."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)

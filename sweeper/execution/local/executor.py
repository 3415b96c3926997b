"""The local executor: runs assignments in forked processes on this machine. One loop, no threads.

The loop asks the driver for assignments, passes it reports and deaths, and ends when nothing is left or a stop is asked
for, as `sweeper.execution.ray.executor` has Ray Tune do. SIGTERM ends it after the turn it is in, so nothing is
journaled by halves; Ctrl-C after the epoch that each trial is in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from sweeper.core.processes import prepare
from sweeper.execution.controllers.base import Interrupts
from sweeper.execution.controllers.capacity import ClusterView, fit_resources
from sweeper.execution.driver.cohort_driver import CohortDriver
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Executor, Job, Session
from sweeper.execution.driver.failures import Failure
from sweeper.execution.local.cohorts import CohortLoop
from sweeper.execution.local.processes import ForkServer, TrialProcess
from sweeper.execution.local.serving import ServingLoop
from trainables.files.container import usable_cores
from trainables.worker.local_process import Reports, WorkerInit


def this_machine(cpus: int | None) -> ClusterView:
    """Return what this machine has for trials: `cpus` cores, or those that this process may use."""
    return ClusterView(({"CPU": float(cpus or usable_cores())},))


class LocalExecutor(Executor):
    """Forked processes of this machine."""

    def __init__(self, server: ForkServer, cpus: int | None) -> None:
        """Run trials in processes that `server` forks, on `cpus` cores, or all."""
        self._server, self._cpus = server, cpus

    @contextmanager
    def session(self, job: Job) -> Iterator[Session]:
        """Give this machine's cores."""
        sweep = job.sweep
        resources, slots = fit_resources(sweep.spec.resources, this_machine(self._cpus))
        prepare(None)  # a searcher imports Ray
        most_lanes = -(-len(sweep.configurations) * sweep.spec.replicates.count // slots)
        run = functools.partial(
            execute,
            settings=job.settings(resources) | {"processes": slots, "most_lanes": most_lanes},
            server=self._server,
            slots=slots,
            log=sweep.paths.log,
            winding_down=job.prepare_end,
            interrupts=job.interrupts,
        )
        yield Session(resources, slots, run, together=True)


def execute(
    driver: Driver,
    settings: Mapping[str, object],
    server: ForkServer,
    *,
    slots: int,
    log: Path,
    winding_down: Callable[[], object] = lambda: None,
    interrupts: Interrupts | None = None,
) -> bool:
    """Run the driver's assignments until none is left or a stop is asked for; return whether Ctrl-C ended it.

    After one Ctrl-C trials finish their epoch, after two they end at once.

    Args:
        driver: decides.
        settings: `trainables.worker.trial_settings.TrialSettings` as plain values, the same for all trials.
        server: forks trial processes.
        slots: trials at once.
        log: takes what libraries print in the processes.
        winding_down: called once, when the last trials train and a slot is free.
        interrupts: what is told of Ctrl-C; it listens itself where none is given.
    """
    kind = CohortLoop if isinstance(driver, CohortDriver) else _Loop
    loop = kind(driver, server, WorkerInit(dict(settings), str(log)), slots, winding_down)  # type: ignore[arg-type]
    with nullcontext(interrupts) if interrupts is not None else Interrupts().listening() as pressed:
        try:
            while not pressed.presses and not driver.should_stop() and loop.turn():
                pass
            while pressed.presses == 1 and not driver.should_stop() and loop.finish_epochs():
                pass
            loop.dismiss(lambda: pressed.presses > 1)
        finally:
            loop.end()
    return pressed.presses > 0


class _Loop(ServingLoop):
    """Processes that train one assignment after the other."""

    def start(self) -> None:
        """Give out assignments as long as processes are free."""
        while len(self.busy) < self._slots and (assignment := self._driver.next_assignment()) is not None:
            self._begin(list(assignment))

    def on_message(self, process: TrialProcess) -> None:
        """Take a process's reports, and tell it whether to continue."""
        assert process.assignment is not None
        found: Reports | None = self.receive(process)
        if found is None:
            return
        over = self._driver.on_reports(process.assignment, found.reports, found.exhausted) or self.ending
        if process.send(not over) and over:
            self._rest(process)

    def on_exit(self, process: TrialProcess, failure: Failure) -> None:
        """Give up a process that has ended, and its assignment."""
        del self.busy[process.connection]
        process.connection.close()
        assignment, process.assignment = process.assignment or [], None
        self._driver.on_failure(assignment, failure)

    def _begin(self, assignment: list[int]) -> None:
        process = self.idle.pop() if self.idle else self.fork()
        process.assignment = assignment
        self.busy[process.connection] = process
        # A process that cannot take it has ended: that shows as the end of its connection.
        process.send(self._driver.describe(assignment))
        self._driver.on_started(assignment)

    def _rest(self, process: TrialProcess) -> None:
        del self.busy[process.connection]
        process.assignment = None
        self.idle.append(process)

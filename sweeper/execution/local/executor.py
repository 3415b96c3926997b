"""The local executor: runs assignments in forked processes on this machine. One loop, no threads.

The loop asks the driver for assignments, passes it reports and deaths, and ends when nothing is left or a stop is asked
for, as `sweeper.execution.ray.executor` has Ray Tune do. SIGTERM ends it after the turn it is in, so nothing is
journaled by halves; Ctrl-C after the epoch that each trial is in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path

from sweeper.execution.controllers.capacity import ClusterView
from sweeper.execution.controllers.interrupts import Interrupts
from sweeper.execution.driver.cohort_driver import CohortDriver
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.failures import Failure
from sweeper.execution.local.cohorts import CohortLoop
from sweeper.execution.local.processes import ForkServer, TrialProcess
from sweeper.execution.local.serving import ServingLoop
from trainables.worker.local_process import Opening, Reports


def this_machine(cpus: int | None) -> ClusterView:
    """Return what this machine has for trials: `cpus` cores, or those that this process may use."""
    return ClusterView(({"CPU": float(cpus or usable_cores())},))


def usable_cores() -> int:
    """Return how many cores this process may use: by its affinity, and by its container's quota."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(allowed, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or `max`: no quota
        return allowed


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
    loop = kind(driver, server, Opening(dict(settings), str(log)), slots, winding_down)  # type: ignore[arg-type]
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

    def hear(self, process: TrialProcess) -> None:
        """Take a process's reports, and tell it whether to continue."""
        assert process.assignment is not None
        said: Reports | None = self.said(process)
        if said is None:
            return
        over = self._driver.on_reports(process.assignment, said.reports, said.exhausted) or self.ending
        if process.send(not over) and over:
            self._rest(process)

    def lose(self, process: TrialProcess, failure: Failure) -> None:
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

"""The local executor: runs assignments in forked processes on this machine. One loop, no threads.

The loop asks the driver for assignments, passes it reports and deaths, and ends when nothing is left or a stop is asked
for, as `sweeper.execution.ray.executor` has Ray Tune do. SIGTERM ends it after the turn it is in, so nothing is
journaled by halves; Ctrl-C after the epoch that each trial is in.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import cast

import psutil

from sweeper.execution.controllers.capacity import ClusterView
from sweeper.execution.controllers.interrupts import Interrupts
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.failures import CRASH, OUT_OF_MEMORY, Failure, classify
from sweeper.execution.local.processes import ForkServer, TrialProcess
from trainables.worker.local_process import Died, Opening, Reports

TURN_SECONDS = 0.2
"""The longest that the loop waits for processes before it looks after the driver's other duties."""

LEAVE_SECONDS = 150.0
"""The longest that a process is waited for which writes a last checkpoint: a store may be out of reach for 120 s."""

THRESHOLD_VARIABLE = "RAY_memory_usage_threshold"

MOST_MEMORY = 0.95
"""Above this share of the machine's memory the largest trial process is ended, as Ray does on its nodes: the kernel
would take whichever process it likes, the driver among them. Ray's own variable changes it here, too."""


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
    loop = _Loop(driver, server, Opening(dict(settings), str(log)), slots, winding_down)
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


class _Loop:
    """The processes at work, and those that wait for an assignment."""

    def __init__(
        self,
        driver: Driver,
        server: ForkServer,
        opening: Opening,
        slots: int,
        winding_down: Callable[[], object] = lambda: None,
    ) -> None:
        self._driver, self._server, self._opening, self._slots = driver, server, opening, slots
        self._winding_down: Callable[[], object] | None = winding_down
        self._busy: dict[Connection, TrialProcess] = {}
        self._idle: list[TrialProcess] = []
        self._ending = False

    def turn(self) -> bool:
        """Hand out what there is, wait for news, pass it on; return whether anything is left to do."""
        while len(self._busy) < self._slots and (assignment := self._driver.next_assignment()) is not None:
            self._start(list(assignment))
        if self._winding_down is not None and len(self._busy) < self._slots and not self._driver.wants_more:
            self._winding_down()
            self._winding_down = None
        if self._busy:
            for ready in wait(list(self._busy), TURN_SECONDS):
                self._hear(self._busy[cast(Connection, ready)])
            self._spare_memory()
        elif not self._driver.exhausted:
            time.sleep(TURN_SECONDS)  # nothing may start just now
        self._driver.flush()
        return bool(self._busy) or not self._driver.exhausted

    def finish_epochs(self) -> bool:
        """Take the next reports, without letting anyone go on; return whether any process is still in its epoch."""
        self._ending = True
        for ready in wait(list(self._busy), TURN_SECONDS):
            self._hear(self._busy[cast(Connection, ready)])
        self._driver.flush()
        return bool(self._busy)

    def dismiss(self, hurried: Callable[[], bool]) -> None:
        """Let the processes end that have nothing to do: one may be writing the checkpoint of a trial that it left."""
        leaving = [process.connection for process in self._idle if process.send(None)]
        deadline = time.monotonic() + LEAVE_SECONDS
        while leaving and not hurried() and time.monotonic() < deadline:
            ended = wait(leaving, TURN_SECONDS)
            leaving = [connection for connection in leaving if connection not in ended]

    def end(self) -> None:
        """End all processes; what they had in hand continues from its checkpoints."""
        for process in (*self._busy.values(), *self._idle):
            process.kill()
            self._server.exit_code(process)
        self._busy.clear()
        self._idle.clear()

    def _start(self, assignment: list[int]) -> None:
        process = self._idle.pop() if self._idle else self._server.fork(self._opening)
        process.assignment = assignment
        self._busy[process.connection] = process
        # A process that cannot take it has ended: that shows as the end of its connection.
        process.send(self._driver.describe(assignment))
        self._driver.on_started(assignment)

    def _hear(self, process: TrialProcess) -> None:
        assert process.assignment is not None
        try:
            said: Reports | Died = process.connection.recv()
        except (EOFError, ConnectionResetError):
            self._lose(process, _death(self._server.exit_code(process)))
            return
        if isinstance(said, Died):
            self._server.exit_code(process)
            self._lose(process, classify(said.type_name, said.text))
            return
        over = self._driver.on_reports(process.assignment, said.reports, said.exhausted) or self._ending
        if process.send(not over) and over:
            self._rest(process)

    def _rest(self, process: TrialProcess) -> None:
        del self._busy[process.connection]
        process.assignment = None
        self._idle.append(process)

    def _lose(self, process: TrialProcess, failure: Failure) -> None:
        del self._busy[process.connection]
        process.connection.close()
        assignment, process.assignment = process.assignment or [], None
        self._driver.on_failure(assignment, failure)

    def _spare_memory(self) -> None:
        """End the largest process where the machine is about to run out of memory."""
        used = psutil.virtual_memory().percent / 100
        if used < float(os.environ.get(THRESHOLD_VARIABLE, MOST_MEMORY)) or not self._busy:
            return
        largest = max(self._busy.values(), key=_resident)
        size = _resident(largest) / 2**30
        largest.kill()
        self._server.exit_code(largest)
        reason = f"the node's memory ran out: its process held {size:.1f} GiB when {used:.0%} was taken"
        self._lose(largest, Failure(OUT_OF_MEMORY, reason))


def _resident(process: TrialProcess) -> int:
    try:
        return int(psutil.Process(process.pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _death(code: int) -> Failure:
    """Return what the end of a process without a word is called."""
    if code < 0:
        return Failure(CRASH, f"its process was ended by {signal.Signals(-code).name}")
    return Failure(CRASH, f"its process ended by itself with exit code {code}")

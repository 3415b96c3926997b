"""What every loop over trial processes of this machine does: hand out, wait for news, spare memory, end."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import psutil

from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.failures import CRASH, OUT_OF_MEMORY, Failure, classify
from sweeper.execution.local.processes import ForkServer, TrialProcess
from trainables.files.container import memory_taken
from trainables.worker.hang_watchdog import ended_by
from trainables.worker.local_process import WorkerFailed, WorkerInit

TURN_SECONDS = 0.2
"""The longest that the loop waits for processes before it looks after the driver's other duties."""

LEAVE_SECONDS = 150.0
"""The longest that a process is waited for which writes a last checkpoint: a store may be out of reach for 120 s."""

THRESHOLD_VARIABLE = "RAY_memory_usage_threshold"

MOST_MEMORY = 0.95
"""Above this share of the memory, the machine's or the container's, the largest trial process is ended, as Ray does on
its nodes: the kernel would take any process, the driver among them. Ray's own variable changes it here, too."""


class ServingLoop(ABC):
    """The processes at work, and those that wait for an assignment.

    Attributes:
        busy: processes at work, by their connection.
        idle: processes that wait.
        ending: no trial continues beyond its next report.
    """

    def __init__(
        self,
        driver: Driver,
        server: ForkServer,
        opening: WorkerInit,
        slots: int,
        winding_down: Callable[[], object] = lambda: None,
    ) -> None:
        """Run the driver's trials in up to `slots` processes; `winding_down` is called when no more are needed."""
        self._driver, self._server, self._opening, self._slots = driver, server, opening, slots
        self._winding_down: Callable[[], object] | None = winding_down
        self._memory_seen = -TURN_SECONDS
        self.busy: dict[Connection, TrialProcess] = {}
        self.idle: list[TrialProcess] = []
        self.ending = False

    @abstractmethod
    def start(self) -> None:
        """Give work to processes that have none, as far as there is any."""

    @abstractmethod
    def on_message(self, process: TrialProcess) -> None:
        """Take what a process says, or its death, and tell it how to continue."""

    @abstractmethod
    def on_exit(self, process: TrialProcess, failure: Failure) -> None:
        """Give up a process that has ended, and what it had in hand."""

    def receive(self, process: TrialProcess) -> Any:
        """Return what a process says; `None` where it has died, which is dealt with."""
        try:
            message = process.connection.recv()
        except (EOFError, ConnectionResetError):
            self.on_exit(process, death_of(self.exit_code(process)))
            return None
        if isinstance(message, WorkerFailed):
            self.exit_code(process)
            self.on_exit(process, classify(message.type_name, message.text))
            return None
        return message

    def turn(self) -> bool:
        """Hand out what there is, wait for news, pass it on; return whether anything is left to do."""
        self.start()
        if self._winding_down is not None and len(self.busy) < self._slots and not self._driver.wants_more:
            self._winding_down()
            self._winding_down = None
        if self.busy:
            for ready in wait(list(self.busy), TURN_SECONDS):
                self.on_message(self.busy[cast(Connection, ready)])
            self._spare_memory()
        elif not self._driver.exhausted:
            time.sleep(TURN_SECONDS)  # nothing may start just now
        self._driver.flush()
        return bool(self.busy) or not self._driver.exhausted

    def finish_epochs(self) -> bool:
        """Take the next reports without letting a process continue; return whether any is still in its epoch."""
        self.ending = True
        for ready in wait(list(self.busy), TURN_SECONDS):
            self.on_message(self.busy[cast(Connection, ready)])
        self._driver.flush()
        return bool(self.busy)

    def dismiss(self, hurried: Callable[[], bool]) -> None:
        """Let the processes end that have nothing to do: one may be writing the checkpoint of a trial that it left."""
        leaving = [process.connection for process in self.idle if process.send(None)]
        deadline = time.monotonic() + LEAVE_SECONDS
        while leaving and not hurried() and time.monotonic() < deadline:
            ended = wait(leaving, TURN_SECONDS)
            leaving = [connection for connection in leaving if connection not in ended]

    def end(self) -> None:
        """End all processes; what they had in hand continues from its checkpoints."""
        for process in (*self.busy.values(), *self.idle):
            process.kill()
            self.exit_code(process)
        self.busy.clear()
        self.idle.clear()

    def fork(self) -> TrialProcess:
        """Return a new process."""
        return self._server.fork(self._opening)

    def exit_code(self, process: TrialProcess) -> int:
        """Return the exit code of a process that ends or has ended."""
        return self._server.exit_code(process)

    def _spare_memory(self) -> None:
        """End the largest process where memory is about to run out, as looked at once a turn's time."""
        if not self.busy or time.monotonic() - self._memory_seen < TURN_SECONDS:
            return
        self._memory_seen = time.monotonic()
        used = memory_taken()
        if used < float(os.environ.get(THRESHOLD_VARIABLE, MOST_MEMORY)):
            return
        largest = max(self.busy.values(), key=_resident)
        size = _resident(largest) / 2**30
        largest.kill()
        self.exit_code(largest)
        reason = f"the node's memory ran out: its process held {size:.1f} GiB when {used:.0%} was taken"
        self.on_exit(largest, Failure(OUT_OF_MEMORY, reason))


def death_of(code: int) -> Failure:
    """Return what the end of a process without a word is called."""
    return Failure(CRASH, ended_by(code))


def _resident(process: TrialProcess) -> int:
    try:
        return int(psutil.Process(process.pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0

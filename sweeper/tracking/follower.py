"""The driver's side of the process that fills a tracker while a sweep runs: start it, wait for it, end it.

It is a separate process at the lowest priority that reads the journal, so a slow or dead server delays nothing else.
Data that it has not logged when the driver ends can be logged later with `sweeper manage sync`. If it is killed, it is
started once more, and reads from the runs which data they lack.
"""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from sweeper.core.ids import SweepPaths
from sweeper.core.processes import python_module, set_niceness, start_beside
from sweeper.tracking.base import kind_of
from trainables.files.atomic import open_regular

#: Environment variable with the tracker's address, which can contain a password. Other users can see arguments, but not
#: the environment.
ADDRESS_VARIABLE = "SWEEPER_TRACKING_URI"

#: Environment variable with the descriptor of a file in which the process overwrites its `COUNTS`.
COUNTS_VARIABLE = "SWEEPER_TRACKING_COUNTS"

#: Runs brought up to date in the current pass over the journal, and runs to bring up to date in it.
COUNTS = struct.Struct("=QQ")

#: Seconds between two looks at the counts.
LOOK_SECONDS = 0.5

#: At its end, a sweep waits for its tracker for this share of the sweep's duration, within these bounds in seconds.
SHARE_OF_TIME, SHORTEST_PATIENCE, LONGEST_PATIENCE = 0.05, 30.0, 60.0

#: Seconds that the process has to end after an error of the driver, and after SIGTERM.
GRACE_SECONDS = 5.0


def patience(seconds: float) -> float:
    """Return how many seconds a sweep that ran for `seconds` waits for its tracker at its end."""
    return min(max(SHARE_OF_TIME * seconds, SHORTEST_PATIENCE), LONGEST_PATIENCE)


class Follower:
    """Starts the process on entry; `wait` gives it time to finish; it ends soon after the driver."""

    _counts: IO[bytes]

    def __init__(self, paths: SweepPaths, address: str | None) -> None:
        """Prepare to fill the tracker at `address` with the sweep at `paths`; `None` fills nothing."""
        self._paths, self._address = paths, address
        self._tracker = kind_of(address).name if address is not None else ""
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def __enter__(self) -> Follower:
        """Start the process."""
        # Unlike a pipe, a file needs no reader while trials train.
        self._counts = tempfile.TemporaryFile()
        if self._address is not None:
            self._start()
        return self

    def _start(self) -> None:
        command = python_module("sweeper.tracking.sync", str(self._paths.root))
        with os.fdopen(open_regular(self._paths.tracking_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
            # When its standard input closes, the process knows that the driver has ended.
            counts = self._counts.fileno()
            told = {ADDRESS_VARIABLE: str(self._address), COUNTS_VARIABLE: str(counts)}
            self._process = start_beside(command, log, kept=[counts], **told)

    def hurry(self) -> None:
        """Make the process log everything now, since trials have ended; the driver meanwhile writes the report."""
        if self._process is not None and self._process.stdin is not None:
            set_niceness(self._process.pid, 0)  # no trial needs the cores any more
            with suppress(OSError):  # it is dead, which `wait` reports
                os.write(self._process.stdin.fileno(), b"\n")

    def keep_alive(self) -> None:
        """Start the process once more if a signal has ended it, for example when memory ran out."""
        if self._process is not None and not self._killed and (self._process.poll() or 0) < 0:
            self._killed = True
            self._start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the process; after an error, first give it some seconds to log that trials have ended."""
        self._counts.close()
        if self._process is None or self._ended(GRACE_SECONDS if kind is not None else 0) is not None:
            return
        self._process.terminate()
        if self._ended(GRACE_SECONDS) is None:
            self._process.kill()
            self._process.wait()

    def wait(self, seconds: float, on_counts: Callable[[int, int], None] = lambda written, behind: None) -> list[str]:
        """Give the process `seconds` to log the rest; return sentences for the user, with a remedy if it needs more.

        Meanwhile, `on_counts` receives the numbers in `COUNTS`.
        """
        if self._process is None:
            return []
        code, until = self._ended(0), time.monotonic() + seconds
        while code is None and (left := until - time.monotonic()) > 0:
            if len(counts := os.pread(self._counts.fileno(), COUNTS.size, 0)) == COUNTS.size:
                on_counts(*COUNTS.unpack(counts))
            code = self._ended(min(left, LOOK_SECONDS))
        if code is not None and code < 0 and not self._killed:
            self.keep_alive()
            code = self._ended(seconds)
        again = f"the process that fills {self._tracker} was killed and started again" if self._killed else ""
        if code == 0:
            return [f"{again}; {self._tracker} is complete"] if again else []
        took = f"after {seconds:.0f} s" if code is None else f"(see {self._paths.tracking_log.name})"
        command = f"sweeper manage sync {self._paths.in_commands}"
        remedy = f"{self._tracker} is incomplete {took}: complete it with `{command}`"
        return [f"{again}; {remedy}" if again else remedy]

    def _ended(self, seconds: float) -> int | None:
        """Close the pipe that the process reads and wait for its end; return its status, `None` if it still runs."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        set_niceness(self._process.pid, 0)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

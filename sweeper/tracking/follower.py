"""The process that fills a tracker while a sweep runs, seen from the driver: started, waited for, left behind.

It is a separate process at the lowest priority, which reads the journal: a slow or dead server can hold up nothing
but itself, and what it has not logged when the driver leaves, `sweeper manage sync` logs later. Killed, it is started
once more: it finds in the runs themselves what they lack.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from pathlib import Path

from sweeper.core.ids import SweepPaths
from sweeper.core.processes import python_module, set_niceness, start_beside
from sweeper.tracking.base import kind_of
from trainables.files.regular import open_regular

#: Tells the process the tracker's address, which may hold a password: arguments are public, the environment is not.
ADDRESS_VARIABLE = "SWEEPER_TRACKING_URI"

#: The end of a sweep waits for a tracker that answers this share of the sweep's time, within these bounds in seconds.
#:
#: For one that does not answer it waits a few seconds at most: the process sees to that itself.
SHARE_OF_TIME, SHORTEST_PATIENCE, LONGEST_PATIENCE = 0.05, 20.0, 30.0


#: On a machine whose cores are busy it waits longer, so many times as long at most.
MOST_TIMES = 5.0

POLL_SECONDS = 0.2


def seconds_ready(process: int) -> float:
    """Return for how long a process was ready and had no processor, in seconds; 0 where the kernel does not tell."""
    try:
        return int(Path(f"/proc/{process}/schedstat").read_text("ascii").split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def patience(seconds: float) -> float:
    """Return how long the end of a sweep that ran for `seconds` may wait for its tracker."""
    return min(max(SHARE_OF_TIME * seconds, SHORTEST_PATIENCE), LONGEST_PATIENCE)


class Follower:
    """Starts the process on entry; `wait` gives it time to finish; it never outlives the driver for long."""

    def __init__(self, paths: SweepPaths, address: str | None) -> None:
        """Prepare to fill the tracker at `address` with the sweep at `paths`; `None` fills nothing."""
        self._paths, self._address = paths, address
        self._tracker = kind_of(address).name if address is not None else ""
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()
        self._finishing, self._killed = False, False

    def __enter__(self) -> Follower:
        """Start the process."""
        if self._address is not None:
            self._start()
            threading.Thread(target=self._watch, name="follower", daemon=True).start()
        return self

    def _start(self) -> subprocess.Popen[bytes]:
        root, parent = str(self._paths.root), str(os.getpid())
        command = python_module("sweeper.tracking.sync", root, "--follow", "--parent", parent)
        with os.fdopen(open_regular(self._paths.tracking_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as log:
            # Its standard input is closed when there is no more to come.
            self._process = start_beside(command, log, **{ADDRESS_VARIABLE: str(self._address)})
        return self._process

    def _watch(self) -> None:
        """Start the process once more if a signal ends it while the sweep runs: out of memory, or somebody's."""
        assert self._process is not None
        if self._process.wait() < 0:
            with self._changing:
                if not self._finishing:
                    self._killed = True
                    self._start()

    def _finish(self) -> None:
        """Close the pipe that the process reads: the end of the sweep, or of the driver, however that dies."""
        with self._changing:
            self._finishing = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the process if it is still there; after an error it has some seconds to say that trials ended."""
        self._finish()
        if self._process is not None and self._process.poll() is None:
            try:
                self._process.wait(5 if kind is not None else 0)
                return
            except subprocess.TimeoutExpired:
                self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def wait(self, seconds: float) -> list[str]:
        """Give the process `seconds` to log what is left; return sentences, with the remedy if that was not enough."""
        if self._process is None:
            return []
        self._finish()
        code = self._ended(seconds)
        if code is not None and code < 0 and not self._killed:
            self._killed = True
            self._start()
            self._finish()
            code = self._ended(seconds)
        again = f"the process that fills {self._tracker} was killed and started again" if self._killed else ""
        if code == 0:
            return [f"{again}; {self._tracker} is complete"] if again else []
        took = f"after {seconds:.0f} s" if code is None else f"(see {self._paths.tracking_log.name})"
        command = f"sweeper manage sync {self._paths.in_commands}"
        remedy = f"{self._tracker} is incomplete {took}: complete it with `{command}`"
        return [f"{again}; {remedy}" if again else remedy]

    def _ended(self, seconds: float) -> int | None:
        """Wait for the process; return its status, `None` if it has not ended, waits for a core left out."""
        assert self._process is not None
        pid = self._process.pid
        set_niceness(pid, 0)
        began, ready = time.monotonic(), seconds_ready(pid)
        while True:
            waited = time.monotonic() - began
            own = waited - (seconds_ready(pid) - ready)
            if own >= seconds or waited >= MOST_TIMES * seconds:
                return None
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(min(POLL_SECONDS, seconds))

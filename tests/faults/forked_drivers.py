"""Drivers in processes of their own that cost a fork: for tests that kill hundreds of them.

A process that has imported everything forks each driver, and the driver forks the server of its trial processes, where
the program itself starts Python anew. Nothing else differs: a SIGKILL ends driver, server and trials as in the field.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from sweeper.execution.fork_server import ForkServer
from tests.patience import patient
from trainables.worker.fork_server import PRELOADED, serve

IMPORTED = ["sweeper.api.main", "sweeper.execution.runner", "sweeper.reporting.page", "tests.faults.forked_drivers"]
"""What a driver would import; the rest follows from it."""


class ForkedServer(ForkServer):
    """The process that forks trial processes, forked itself."""

    def __init__(self) -> None:
        """Fork the server from this process, which has run no torch operation."""
        self._control, theirs = multiprocessing.Pipe()
        self._process = SimpleNamespace(pid=os.fork())  # type: ignore[assignment]  # of a process, its id is asked for
        if self._process.pid:
            theirs.close()
            return
        try:
            self._control.close()
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            serve(theirs)
        finally:
            os._exit(0)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the server."""
        self._control.close()
        os.waitpid(self._process.pid, 0)


class ForkedDriver:
    """A driver that runs a command; `pid`, `poll` and `wait` are those of `subprocess.Popen`."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        """Start `sweeper` with these arguments in `folder`; what it prints goes to `driver.out` there."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*IMPORTED, *PRELOADED])
        self._process = context.Process(target=_drive, args=(folder, [*map(str, arguments)]))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; `None` while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float) -> int | None:
        """Wait for the end; return the exit code, `None` where it did not come in time."""
        self._process.join(timeout)
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL the driver and wait for its end."""
        self._process.kill()
        assert self.wait(patient(30)) is not None


@contextmanager
def forked(folder: Path, *arguments: str | Path) -> Iterator[ForkedDriver]:
    """Start a driver; on leaving, end it if it still runs."""
    driver = ForkedDriver(folder, *arguments)
    try:
        yield driver
    finally:
        driver.kill()


def _drive(folder: Path, arguments: list[str]) -> None:
    """Be `sweeper` with these arguments."""
    from sweeper.api.main import main

    os.chdir(folder)
    out = os.open("driver.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv = ["sweeper", *arguments]
    with mock.patch("sweeper.execution.fork_server.ForkServer", ForkedServer):
        main()

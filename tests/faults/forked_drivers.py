"""Drivers in processes of their own that cost a fork: for tests that kill hundreds of them.

The standard library's fork server, which has imported everything, forks each driver, and also the driver's trial
processes, where the program itself starts a server of its own. Nothing else differs: a SIGKILL ends driver and trials
as in the field.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

from sweeper.execution.trial_processes import PRELOADED
from tests.patience import patient

IMPORTED = ["sweeper.api.main", "sweeper.execution.runner", "sweeper.reporting.page", "tests.faults.forked_drivers"]
"""What a driver would import; the rest follows from it."""


class ForkedDriver:
    """A driver that runs a command; `pid`, `poll` and `wait` are those of `subprocess.Popen`."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        """Start `sweeper` with these arguments in `folder`; what it prints goes to `driver.out` there."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*IMPORTED, *PRELOADED])
        until = time.monotonic() + patient(10)
        while True:
            self._process = context.Process(target=_drive, args=(folder, [*map(str, arguments)]))
            try:
                self._process.start()
                break
            except ConnectionError:
                # A driver that is killed while it asks the fork server for a trial's process ends the server, too
                # (Python 3.11); the next `start` begins another one once this one has ended.
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
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
    with (
        mock.patch.object(forkserver, "ensure_running"),
        mock.patch.object(
            forkserver._forkserver,
            "ensure_running",  # type: ignore[attr-defined]  # the server of this process
        ),
    ):
        main()

"""Trial processes on this machine, forked by the standard library's fork server, which has imported torch.

The server starts with the command, so torch is imported while the driver still reads the search space. Starting a trial
process then takes a fork instead of an import. The server never runs a torch operation, because a fork after one would
inherit the locks of thread pools without their threads. It serves every sweep of the driver's process, and is started
again if it was killed.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from types import ModuleType

from sweeper.core.errors import SweeperError
from sweeper.core.processes import python_environment
from trainables.files.atomic import open_regular
from trainables.worker.trial_reports import WorkerFailed, WorkerInit

PRELOADED = (
    __name__,
    "trainables.worker.workers",
    "trainables.datasets",
    "trainables.models",
    "trainables.losses",
    # First steps, fits and tables import these modules. That takes two seconds of processor time, here once instead of
    # in each child.
    "scipy.optimize",
    "pandas",
    "threadpoolctl",
)

#: Servers that are started for one process, if each ends before it can fork.
ATTEMPTS = 3

_CONTEXT = multiprocessing.get_context("forkserver")


class ForkServerGone(SweeperError):  # noqa: N818 - the name says what is gone
    """The fork server cannot be kept alive; all results so far are kept."""

    exit_code = 1


class TrialProcess:
    """One forked process, and the connection to it."""

    def __init__(self, process: ForkServerProcess, connection: Connection) -> None:
        """Refer to a started process, reached through `connection`."""
        assert process.pid is not None, "it is started"
        self._process, self.pid, self.connection = process, process.pid, connection

    def send(self, message: object) -> bool:
        """Send picklable values; return whether the process is alive to receive them."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)
            return True
        return False

    def kill(self) -> None:
        """Kill the process and wait for its end; its trial can continue from its checkpoint."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.connection.close()
        self._process.join()

    def exit_code(self) -> int:
        """Wait for the process to end; return its exit code, negative for the signal that ended it.

        The code is 255 if the fork server was killed, since only the server, its parent, can wait for it.
        """
        self._process.join()
        return self._process.exitcode or 0


def start_early(executor: str, address: str | None) -> None:
    """Start the server if it could be needed, and return without waiting for it.

    Args:
        executor: Requested executor: `auto`, `local` or `ray`.
        address: Address of a Ray cluster, or `None`.
    """
    if executor in ("auto", "local") and address is None:
        _start_server()


def fork(opening: WorkerInit) -> TrialProcess:
    """Fork a trial process, send it `opening`, and return it. Raises ForkServerGone."""
    for _ in range(ATTEMPTS):
        _start_server()
        ours, theirs = Pipe()
        # Not a daemon, which could not start processes of its own, such as those of a data loader.
        process = _CONTEXT.Process(target=_trial_process, args=(theirs, _environment()))
        with theirs, _without_main(), suppress(EOFError, ConnectionError):  # the server was killed meanwhile
            process.start()
            trial_process = TrialProcess(process, ours)
            trial_process.send(opening)
            return trial_process
    raise ForkServerGone(
        "the process that forks trial processes ends at once",
        "check whether memory ran out; results are kept, continue with `sweeper resume`",
    )


def _start_server() -> None:
    """Start the fork server unless it runs."""
    _CONTEXT.set_forkserver_preload([*PRELOADED])
    before = dict(os.environ)
    os.environ.update(_environment())  # the server has no argument for its environment
    resource_tracker.ensure_running()  # else the server starts it, which unblocks the signal
    # A terminal sends Ctrl-C to the server, too. It would end while it imports, and processes inherit what is blocked.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _environment() -> dict[str, str]:
    # One thread for numpy's products until a trial sets its own number. The default, one per core, would slow parallel
    # trials down and change the order of floating-point sums.
    return python_environment(OMP_NUM_THREADS="1")


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module, which a new process would run again: a script that calls `sweeper.run` has no guard."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _trial_process(connection: Connection, environment: Mapping[str, str]) -> None:
    """Set up a forked process, and serve the driver."""
    # In a separate group, because the driver ends its processes cleanly when its group receives a signal; in the same
    # session, see `set_niceness`.
    os.setpgid(0, 0)
    threading.Thread(target=_end_with_driver, daemon=True).start()
    gc.freeze()  # a trial need not look through what all processes share, nor copy its pages
    os.environ.clear()  # the server has the variables of the first sweep
    os.environ.update(environment)
    sys.path[:] = environment["PYTHONPATH"].split(os.pathsep)
    status = 1
    try:
        work(connection)
        status = 0
    finally:
        # Otherwise this process would wait for threads and processes that a trial left, and the driver for this one.
        os._exit(status)


def _end_with_driver() -> None:
    """Kill this process when the driver has died in any way; the server lives as long as its children."""
    driver = multiprocessing.parent_process()
    assert driver is not None, "a child of the driver"
    wait([driver.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def work(connection: Connection) -> None:
    """Serve the driver until it sends `None` or is gone, as `trainables.worker.trial_reports` describes."""
    from threadpoolctl import threadpool_limits

    from trainables.worker.workers import CohortWorker, Worker, failure_of

    try:
        opening: WorkerInit = connection.recv()
        log = open_regular(opening.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for output in (1, 2):  # libraries and C code print to the descriptors, not to `sys.stdout`
            os.dup2(log, output)
        os.close(log)
        threadpool_limits(opening.settings.threads)  # for numpy's BLAS; torch has its own setting
        worker = (CohortWorker if opening.together else Worker)(opening.settings)
        while (command := connection.recv()) is not None:
            if (report := worker.follow(command)) is not None:
                connection.send(report)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the driver is gone
    except Exception as error:
        traceback.print_exception(error)
        connection.send(WorkerFailed(failure_of(error)))

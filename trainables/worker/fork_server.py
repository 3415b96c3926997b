"""A process that has imported torch and forks trial processes on request, for sweeps on this machine without Ray.

It starts with the command, so torch is imported while the driver still reads the search space. Starting a trial process
then takes a fork instead of an import. It never runs a torch operation itself, because a fork after one would inherit
the locks of thread pools without their threads.

The driver holds the other end of the control connection, which closes when the driver dies in any way. Then the
server ends, and the kernel ends its children with it (`PR_SET_PDEATHSIG`).
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

from trainables.files.atomic import open_regular
from trainables.worker.hang_watchdog import die_with_parent, exit_code
from trainables.worker.trial_reports import WorkerFailed, WorkerInit

PRELOADED = (
    "trainables.worker.workers",
    "trainables.datasets",
    "trainables.models",
    "trainables.losses",
    # First steps, fits and tables import these modules. That takes two seconds of processor time, here once instead of
    # in each child.
    "scipy.optimize",
    "pandas",
)


def serve(control: Connection) -> None:
    """Answer requests until the driver closes its end of the connection.

    A request 0 comes with a descriptor and is answered by the id of a new trial process that uses it. Any other request
    is a process id and is answered by that process's exit code once it has ended.
    """
    gc.disable()
    for module in PRELOADED:
        importlib.import_module(module)
    # Trial processes need not look through what all of them share, nor copy its pages.
    gc.freeze()
    gc.enable()
    while True:
        try:
            pid = control.recv()
            control.send(exit_code(pid) if pid else _forked(control, recv_handle(control)))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _forked(control: Connection, descriptor: int) -> int:
    """Fork a trial process that communicates through `descriptor`; return its id."""
    server = os.getpid()
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    status = 1
    try:
        control.close()  # else the server's end would stay open in the child after the server has died
        die_with_parent(server)
        with Connection(descriptor) as connection:
            work(connection)
        status = 0
    finally:
        # Not `sys.exit`, which would run the server's exit handlers in the child.
        os._exit(status)
    raise AssertionError("a process that has ended continues")


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


if __name__ == "__main__":
    # Ctrl-C is for the driver, which ends its processes cleanly.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
    # Nothing is left to flush or close. Unloading torch takes half a second, and the driver would wait for it.
    os._exit(0)

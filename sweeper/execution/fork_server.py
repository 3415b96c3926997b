"""Trial processes of this machine, forked by a server that has imported torch (`trainables.worker.fork_server`)."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle

from sweeper.core.errors import SweeperError
from sweeper.core.processes import python_environment, python_module
from trainables.worker import fork_server
from trainables.worker.trial_reports import WorkerInit

#: How long the server may take to exit on its own once it is not needed.
END_SECONDS = 5.0


class ForkServerGone(SweeperError):  # noqa: N818 - says what is gone
    """The process that forks trial processes has ended; what the sweep has so far is kept."""

    exit_code = 1


class TrialProcess:
    """One forked process, and the connection to it."""

    def __init__(self, pid: int, connection: Connection) -> None:
        """Stand for process `pid`, reached through `connection`."""
        self.pid, self.connection = pid, connection

    def send(self, message: object) -> bool:
        """Send plain values; return whether the process could take them."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)
            return True
        return False

    def kill(self) -> None:
        """End the process at once; its trial has a checkpoint."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.connection.close()


class ForkServer:
    """The process that forks trial processes. Start it early: it imports torch meanwhile."""

    def __init__(self) -> None:
        """Start the server and return at once."""
        self._control, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                python_module(fork_server.__name__, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the driver; in its session, see `set_niceness`
                # One thread for numpy's products until a process says otherwise: as many as cores would get in each
                # other's way, and add in another order.
                env=python_environment(OMP_NUM_THREADS="1"),
            )

    def __enter__(self) -> ForkServer:
        """Serve."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the server, and with it all that it has forked."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fork(self, opening: WorkerInit) -> TrialProcess:
        """Return a new trial process that has been sent `opening`."""
        ours, theirs = Pipe()
        with theirs:
            pid = self._ask(0, theirs.fileno())
        process = TrialProcess(pid, ours)
        process.send(opening)
        return process

    def exit_code(self, process: TrialProcess) -> int:
        """Return the exit code of a process that ends or has ended, negative for the signal that ended it."""
        return self._ask(process.pid)

    def _ask(self, pid: int, *descriptors: int) -> int:
        """Send a request as `trainables.worker.fork_server.serve` takes it; return the answer."""
        try:
            self._control.send(pid)
            for descriptor in descriptors:
                send_handle(self._control, descriptor, self._process.pid)
            return int(self._control.recv())
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise ForkServerGone(
                "the process that forks trial processes has ended",
                "check whether it was killed or memory ran out; results are kept, continue with `sweeper resume`",
            ) from error


def early_server(
    executor: str, address: str | None, given: ForkServer | None = None
) -> AbstractContextManager[ForkServer | None]:
    """Start the server where it may be needed, as early as can be: it imports torch while the space is read.

    Args:
        executor: asked for.
        address: of a Ray cluster.
        given: one that runs already, whose owner ends it.
    """
    if given is not None or executor not in ("auto", "local") or address is not None:
        return nullcontext(given)
    return ForkServer()

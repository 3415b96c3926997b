"""Trial processes on this machine, forked by a server that has imported torch (`trainables.worker.fork_server`)."""

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

#: Seconds that the server has to exit by itself before it is killed.
END_SECONDS = 5.0


class ForkServerGone(SweeperError):  # noqa: N818 - the name says what is gone
    """The process that forks trial processes has ended; all results so far are kept."""

    exit_code = 1


class TrialProcess:
    """One forked process, and the connection to it."""

    def __init__(self, pid: int, connection: Connection) -> None:
        """Refer to process `pid`, reached through `connection`."""
        self.pid, self.connection = pid, connection

    def send(self, message: object) -> bool:
        """Send picklable values; return whether the process is alive to receive them."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)
            return True
        return False

    def kill(self) -> None:
        """Kill the process; its trial can continue from its checkpoint."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.connection.close()


class ForkServer:
    """The process that forks trial processes. Start it early, so that it imports torch in the meantime."""

    def __init__(self) -> None:
        """Start the server and return without waiting for it."""
        self._control, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                python_module(fork_server.__name__, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # In a separate group, because a terminal sends Ctrl-C to the driver's group; in the same session, see
                # `set_niceness`.
                process_group=0,
                # One thread for numpy's products until a trial sets its own number. The default, one per core, would
                # slow parallel trials down and change the order of floating-point sums.
                env=python_environment(OMP_NUM_THREADS="1"),
            )

    def __enter__(self) -> ForkServer:
        """Return the running server."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """End the server and all processes that it has forked."""
        self._control.close()  # the server exits when its end of the pipe closes
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fork(self, opening: WorkerInit) -> TrialProcess:
        """Fork a trial process, send it `opening`, and return it."""
        ours, theirs = Pipe()
        with theirs:
            pid = self._ask(0, theirs.fileno())
        process = TrialProcess(pid, ours)
        process.send(opening)
        return process

    def exit_code(self, process: TrialProcess) -> int:
        """Wait for a process to end; return its exit code, negative for the signal that ended it."""
        # Only the server, its parent, can wait for it.
        return self._ask(process.pid)

    def _ask(self, pid: int, *descriptors: int) -> int:
        """Send a request in the format of `trainables.worker.fork_server.serve`; return the answer."""
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
    """Start the server if it could be needed, so that it imports torch while the search space is read.

    Args:
        executor: Requested executor: `auto`, `local` or `ray`.
        address: Address of a Ray cluster, or `None`.
        given: Server that already runs; its owner ends it.
    """
    if given is not None or executor not in ("auto", "local") or address is not None:
        return nullcontext(given)
    return ForkServer()

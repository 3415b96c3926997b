"""Commands in processes of their own that cost a fork instead of four seconds of imports.

A server, one for each process of pytest, has imported what commands import. It never runs a torch operation and has one
thread, so that a process forked from it has no lock without its owner. Such a process takes environment, folder and
streams from the request, becomes `python -m sweeper`, and ends as an interpreter ends. A command that starts the
standard library's fork server forks that, too, where it has only one thread. The server reports the exit code, as it
is the parent. A process whose environment has settings that an interpreter reads at its start gets an interpreter.

What a fork cannot show: the seed of Python's hashes is the server's, and modules are imported before a command starts.
"""

import contextlib
import gc
import multiprocessing.util
import os
import pickle
import random
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from select import select
from typing import IO, NamedTuple

IMPORTED = ("sweeper.execution.runner", "sweeper.reporting.page")
"""What a driver would import, besides the command line; the rest follows from it."""

AT_START = ("PYTHON", "LD_", "LC_", "LANG", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "CUDA_")
"""Beginnings of environment variables that are read when an interpreter or a library starts."""

ROOT = Path(__file__).parents[1]
BEFORE = dict(os.environ)
"""The environment before any test changes it."""

_NUMBER = struct.Struct("q")


class Request(NamedTuple):
    """What a forked process becomes."""

    program: str
    arguments: Sequence[str]
    folder: str
    environment: Mapping[str, str]


class Forked:
    """A forked process: `pid`, `args`, `returncode` and the methods are those of `subprocess.Popen`."""

    def __init__(self, request: Request, out: IO[str], err: IO[str]) -> None:
        """Fork a process that prints to these files and reads what this process would read."""
        self.args, self.returncode = ["sweeper", *request.arguments], None
        self._status, theirs = os.pipe()
        try:
            _send(request, [0, out.fileno(), err.fileno(), theirs])
        finally:
            os.close(theirs)
        self.pid = self._read()

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; `None` while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        if self.returncode is None:
            if not select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._read()
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self) -> int:
        number = os.read(self._status, _NUMBER.size)
        assert number, "the server of forks has ended"
        return int(_NUMBER.unpack(number)[0])


def can_fork(environment: Mapping[str, str] | None) -> bool:
    """Return whether nothing in an environment must be read at an interpreter's start."""
    return _at_start(os.environ if environment is None else environment) == _at_start(BEFORE)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    # A command that a test ran in its own process left this; every command sets it for itself.
    left = ("PYTHONIOENCODING", ":replace")
    return {name: text for name, text in environment.items() if name.startswith(AT_START) and (name, text) != left}


_server: list[socket.socket] = []


def _send(request: Request, descriptors: list[int]) -> None:
    """Send a request to the server of this process; start it if it does not run."""
    if not _server:
        _start()
    try:
        socket.send_fds(_server[0], [pickle.dumps(request)], descriptors)
    except ConnectionError:  # a test ended it
        _server.pop().close()
        _start()
        socket.send_fds(_server[0], [pickle.dumps(request)], descriptors)


def _start() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # One thread, which is what commands give the trial processes that they fork.
    environment = {**BEFORE, "OMP_NUM_THREADS": "1"}
    descriptor = theirs.fileno()
    command = [sys.executable, "-m", __name__, str(descriptor)]
    with theirs:
        subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[descriptor])
    _server.append(ours)


def serve(requests: socket.socket) -> tuple[Request, list[int]]:
    """Fork a process for each request; return in the forked process only."""
    ended = selectors.DefaultSelector()
    ended.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in ended.select():
            if key.data is not None:
                _report(*key.data)
                ended.unregister(key.fd)
                os.close(key.fd)
                continue
            message, descriptors, *_ = socket.recv_fds(requests, 1 << 20, 4)
            if not message:
                os._exit(0)  # the process of pytest has ended
            if not (pid := os.fork()):
                _close(*(each.fd for each in ended.get_map().values()))
                _close(*(each.data[1] for each in ended.get_map().values() if each.data))
                ended.close()
                return pickle.loads(message), descriptors
            os.write(descriptors[3], _NUMBER.pack(pid))
            ended.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, descriptors[3]))
            _close(*descriptors[:3])


def _report(pid: int, status: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        os.write(status, _NUMBER.pack(code))
    os.close(status)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def become(request: Request, descriptors: list[int]) -> None:
    """Be an interpreter that was started for this request."""
    import numpy as np

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
    _close(*descriptors)
    for target, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        stream = open(target, before.mode, encoding=before.encoding, errors=before.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
    sys.stderr.reconfigure(line_buffering=True)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    random.seed()
    np.random.seed()
    sys.path[0], sys.argv[1:] = request.folder, request.arguments
    multiprocessing.util.spawnv_passfds = _fork_or_start  # type: ignore[assignment]
    runpy.run_module(request.program, run_name="__main__", alter_sys=True)


_start_interpreter = multiprocessing.util.spawnv_passfds


def _fork_or_start(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """Start the standard library's fork server: by a fork, where this process has one thread."""
    program = arguments[-1]
    forks = program.startswith("from multiprocessing.forkserver") and len(os.listdir("/proc/self/task")) == 1
    if not forks:
        return _start_interpreter(path, arguments, descriptors)
    if pid := os.fork():
        return pid
    try:
        _close(*(each for each in map(int, os.listdir("/proc/self/fd")) if each > 2 and _is_open(each, descriptors)))
        for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            signal.signal(number, handler)
        forkserver._forkserver.__init__()  # type: ignore[attr-defined, misc]  # its lock is held by the caller
        exec(program, {})
    except SystemExit:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _is_open(descriptor: int, kept: Sequence[int]) -> bool:
    return descriptor not in kept and Path(f"/proc/self/fd/{descriptor}").exists()


if __name__ == "__main__":
    from sweeper.execution.trial_processes import PRELOADED

    for module in ("sweeper.api.main", *PRELOADED):
        import_module(module)
    gc.freeze()  # what all processes share need not be looked through; DuckDB's objects must be at their ends
    for module in IMPORTED:
        import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for commands
    become(*serve(socket.socket(fileno=int(sys.argv[1]))))

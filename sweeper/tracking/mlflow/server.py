"""MLflow's own server over a store, for browsing: on this machine's loopback address only."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from sweeper.core.errors import SweeperError
from sweeper.core.processes import OUR_ROOT, python_environment, python_module

GRACE_SECONDS = 5.0
"""How long the server's processes have to end by themselves."""

NO_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""MLflow starts eight processes that carry out jobs of its generative AI; no sweep has any. The environment may ask."""

_GUARD = 'read -r word || kill -s KILL -- "-$1"'

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(tracking_uri: str, port: int) -> int:
    """Run MLflow's server until it is interrupted; return its exit status.

    Args:
        tracking_uri: the store; an `http` address is a server already and needs none.
        port: on 127.0.0.1.

    Raises SweeperError when the store is a server already, or the port is taken.
    """
    if tracking_uri.startswith("http"):
        raise SweeperError(f"{tracking_uri} is already a server", "open it in a browser")
    if _taken(port):
        raise SweeperError(f"port {port} of 127.0.0.1 is taken", "choose another port with --port")
    command = python_module("mlflow", "server", "--backend-store-uri", tracking_uri, "--host", "127.0.0.1")
    # Without a folder, uvicorn puts the working directory first on its path (`--app-dir`, uvicorn 0.3x).
    command += ["--port", str(port), "--workers", "1", "--uvicorn-opts", f"--app-dir {shlex.quote(str(OUR_ROOT))}"]
    with _ended_by_signals():
        # The server starts processes of its own, which outlive it: they end together, as one group.
        process = subprocess.Popen(command, start_new_session=True, env={**NO_JOBS, **python_environment()})
        with ended_with_this_process(process.pid):
            try:
                return process.wait()
            except KeyboardInterrupt:
                return 0
            finally:
                _end_group(process)


@contextmanager
def ended_with_this_process(group: int) -> Iterator[None]:
    """Have a shell kill the process group `group` if this process ends before the context does: killed, it cannot."""
    guard = subprocess.Popen(
        ["sh", "-c", _GUARD, "sweeper", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process
    )
    try:
        yield
    finally:
        guard.communicate(b"over\n")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and the end of the terminal do what Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End every process that the server has started; one that does not listen is killed."""
    for number in ENDING:
        # A second Ctrl-C must not leave processes behind.
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0

"""Start processes that import installed code only.

`python -m` puts the working directory before everything installed, so a `torch.py` in a
folder from someone else would run in every process that imports PyTorch. `-P` leaves the directory out (Python 3.11),
and `PYTHONSAFEPATH` does so for further processes that it starts. Ray reads some variables only when it is imported, so
they are set before.
"""

from __future__ import annotations

import atexit
import gc
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

#: The folder that contains this project's packages: site-packages, or a checkout.
OUR_ROOT = Path(__file__).resolve().parents[2]

#: Niceness of processes that only follow a sweep: while all cores are busy, they get a hundredth of a core.
LOWEST_PRIORITY = 19


def collect_garbage_rarely() -> None:
    """Let Python look for unreachable cycles after 100,000 new objects, not after 700, and not at this process's end.

    Importing PyTorch and planning makes a million lasting objects. Looking through them again and again took a tenth of
    `plan`'s processor time, and looking through them at its end .9 s.
    """
    gc.set_threshold(100_000, 5, 5)
    atexit.unregister(_leave_garbage)  # once, however many commands this process runs
    atexit.register(_leave_garbage)


def _leave_garbage() -> None:
    # DuckDB 2 prints a warning for each of its objects that is left at the end of a process.
    if "duckdb" not in sys.modules:
        gc.freeze()


def set_niceness(process: int, level: int) -> None:
    """Set a process's niceness, and its session's if it leads one.

    With /proc/sys/kernel/sched_autogroup_enabled at 1, the kernel's default, a process's niceness counts only within
    its session; between sessions, the session's niceness counts. So a process that must give way to trials belongs in
    their session, in a separate process group: MLflow's follower at niceness 19 slowed 256 short trials by a fifth in a
    separate session, but by a tenth in the trials' session. Linux's idle policy slowed no trial, but while all cores
    were busy the follower wrote nothing for four minutes. It could pause as long while it holds the database.
    """
    # Only root can lower a niceness again; without that right the process keeps its level. It is lowered only at a
    # sweep's end, when the cores are idle anyway.
    with suppress(PermissionError, ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process, level)
    with suppress(OSError):
        if os.getsid(process) == process:
            Path(f"/proc/{process}/autogroup").write_text(str(level))


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as a process, without the working directory on its search path."""
    return [sys.executable, "-P", "-m", name, *arguments]


def start_beside(
    command: Sequence[str], output: int | IO[bytes], *, kept: Sequence[int] = (), **changes: str
) -> subprocess.Popen[bytes]:
    """Start a process at the lowest priority.

    Its standard input stays open until this process ends or closes it, so the started process notices both.

    Args:
        command: program and arguments, see `python_module`.
        output: file or descriptor that receives standard output and standard error.
        kept: further descriptors that the process may use, with the same numbers.
        changes: environment variables to set.
    """
    process = subprocess.Popen(
        command, env=python_environment(**changes), stdin=subprocess.PIPE, stdout=output, stderr=output,
        pass_fds=kept, process_group=0,  # Ctrl-C must not reach it
    )  # fmt: skip
    set_niceness(process.pid, LOWEST_PRIORITY)
    return process


def python_environment(**changes: str) -> dict[str, str]:
    """Return an environment in which a process finds the same modules as this one, in the same order."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search_path()), "PYTHONSAFEPATH": "1", **changes}


@contextmanager
def at_death(script: str, argument: str) -> Iterator[None]:
    """Run a shell script if this process dies inside the context, also by SIGKILL.

    Args:
        script: shell commands.
        argument: value of `$1` in the script.

    An exception that ends the context does not run the script.
    """
    # The shell waits for a line on the pipe. A dead process cannot write one, and the kernel closes the pipe instead.
    guard = subprocess.Popen(
        ["sh", "-c", f"read -r word || {script}", "sweeper", argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must not reach it
    )
    try:
        yield
    finally:
        guard.communicate(b"alive\n")


def search_path() -> list[str]:
    """Return this process's module search path without the working directory.

    The directory is kept if it contains the project's packages, or if the user named it in `PYTHONPATH`.
    """
    named = {os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    kept = named | {str(OUR_ROOT)}
    current = os.path.realpath(os.curdir)
    return [entry for entry in sys.path if entry and (os.path.realpath(entry) != current or current in kept)]


#: Ray gives a node half a minute to start, which a busy machine can need for the imports alone.
PATIENT_START = {"RAY_raylet_start_wait_time_s": "240"}

TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the journal has every result; one file per trial would only cost time
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # snapshots of all trials serve `Tuner.restore`, which is never used
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # reports carry their metrics in a list
    "TUNE_RESULT_BUFFER_LENGTH": "1",  # a decision must reach the trial before its next step
    "RAY_AIR_NEW_OUTPUT": "0",  # the progress shown is the sweep's own
    "RAY_USAGE_STATS_ENABLED": "0",  # a sweep sends no usage statistics
    # For clusters started here: with workers at Ray's default of 15, MLflow's process at 19 takes 29 % of a core.
    "RAY_worker_niceness": "5",
    **PATIENT_START,
}


def prepare(address: str | None) -> None:
    """Set Ray's environment variables for a sweep.

    Args:
        address: the cluster to join; `None` starts one on this machine.
    """
    # Ray >= 2.59 switches token authentication on for local clusters and would write a token into the home folder,
    # which a later `ray start --head` then demands. A token for this process alone avoids that. A token that is set
    # already belongs to a cluster and is kept.
    os.environ.update(TUNE_SETTINGS)
    if address is None and "RAY_AUTH_TOKEN" not in os.environ and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

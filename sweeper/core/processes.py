"""How processes are started: in which environment, importing only what is installed.

`python -m` puts the working directory before everything installed, so inside a folder from somebody else a `torch.py`
in it would run in every process that imports PyTorch. `-P` leaves it out (Python 3.11), `PYTHONSAFEPATH` does so for
the processes that such a process starts. Ray reads some variables only when it is imported, so they are set before.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

#: The folder of this project's packages: of the installed ones, or a checkout.
OUR_ROOT = Path(__file__).resolve().parents[2]

#: Of processes that only follow a sweep: beside busy cores they get a hundredth of one.
LOWEST_PRIORITY = 19


def set_niceness(process: int, level: int) -> None:
    """Set a process's niceness, and its session's where it leads one of its own.

    With /proc/sys/kernel/sched_autogroup_enabled at 1, the kernel's default, niceness counts within a session only,
    and a session's own among sessions. What gives way to trials is best in their session, in a `process_group` of its
    own: in a session of its own, at 19, MLflow's follower took a fifth of the speed of 256 short trials, in theirs a
    tenth. Linux's idle policy takes nothing, but where all cores are busy it wrote nothing for four minutes, and may
    stop for as long while it holds the database.
    """
    # Only root may take a low niceness back; then it has the cores to itself by now anyway.
    with suppress(PermissionError, ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process, level)
    with suppress(OSError):
        if os.getsid(process) == process:
            Path(f"/proc/{process}/autogroup").write_text(str(level))


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as a process, without the working directory on its search path."""
    return [sys.executable, "-P", "-m", name, *arguments]


def start_beside(command: Sequence[str], said: int | IO[bytes], **changes: str) -> subprocess.Popen[bytes]:
    """Start such a process at the lowest priority; what it prints goes to `said`.

    Its standard input is held open for as long as this process lives, or closes it.
    """
    process = subprocess.Popen(
        command, env=python_environment(**changes), stdin=subprocess.PIPE, stdout=said, stderr=said,
        process_group=0,  # Ctrl-C is for this process
    )  # fmt: skip
    set_niceness(process.pid, LOWEST_PRIORITY)
    return process


def python_environment(**changes: str) -> dict[str, str]:
    """Return the environment for such a process: it finds the modules that this one finds, in the same order."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search_path()), "PYTHONSAFEPATH": "1", **changes}


@contextmanager
def at_death(script: str, argument: str) -> Iterator[None]:
    """Have a shell run `script`, its `$1` the argument, if this process ends before the context does, however it dies.

    The shell waits for a word, and finds the end of the pipe instead. Whatever else ends the context, an exception
    included, speaks for itself.
    """
    guard = subprocess.Popen(
        ["sh", "-c", f"read -r word || {script}", "sweeper", argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process
    )
    try:
        yield
    finally:
        guard.communicate(b"alive\n")


def search_path() -> list[str]:
    """Return this process's module search path without the working directory.

    It stays where the project's own packages lie in it, or where the user put it into `PYTHONPATH` by its name.
    """
    named = {os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    kept = named | {str(OUR_ROOT)}
    here = os.path.realpath(os.curdir)
    return [entry for entry in sys.path if entry and (os.path.realpath(entry) != here or here in kept)]


TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the journal has every result; files a trial would only cost time
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # snapshots of all trials serve `Tuner.restore`, which is never used
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # reports carry their metrics in a list
    "TUNE_RESULT_BUFFER_LENGTH": "1",  # a decision must reach the trial before its next step
    "RAY_AIR_NEW_OUTPUT": "0",  # the progress shown is the sweep's own
    "RAY_USAGE_STATS_ENABLED": "0",  # a sweep sends no usage statistics
    "RAY_worker_niceness": "5",  # of a cluster started here: beside Ray's 15, MLflow's process at 19 has 29 % of a core
}


def prepare(address: str | None) -> None:
    """Set Ray's environment for a sweep on the cluster at `address`, or on one started here for `None`.

    Local clusters start with token authentication, and Ray would write a token into the home folder; one that
    lives as long as this process is made instead. A token that is set already is kept, for it belongs to a cluster.
    """
    os.environ.update(TUNE_SETTINGS)
    if address is None and "RAY_AUTH_TOKEN" not in os.environ and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)

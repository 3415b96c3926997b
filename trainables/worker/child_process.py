"""What a process and the one that forked it owe each other: to end together, and to say how a child ended."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def exit_code(pid: int) -> int:
    """Wait for a child's end; return its exit code, negative for the signal that ended it."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status)


def ended_by(code: int) -> str:
    """Return in words how a process ended without an error message, from its `exit_code`."""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended by itself with exit code {code}"

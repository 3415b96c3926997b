"""Whether processes run, and waiting for their ends."""

import time
from collections.abc import Iterable

import psutil

from tests.patience import patient


def running(pids: Iterable[int]) -> list[int]:
    """Return those of `pids` that run; one that has ended and waits for its parent to notice does not."""
    return [pid for pid in pids if _status(pid) not in {None, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}]


def wait_for_ends(*pids: int, seconds: float = 30) -> None:
    """Wait until none of `pids` runs; AssertionError after so many seconds of a quiet, fast machine."""
    deadline = time.monotonic() + patient(seconds)
    while left := running(pids):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.01)


def _status(pid: int) -> str | None:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return None

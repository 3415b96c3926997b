"""Locks between processes: the operating system's (`flock`), which fall with their process, however that dies.

A lock belongs to an open file, not to its name, so a lock file is never removed: its content means nothing here.
"""

from __future__ import annotations

import fcntl
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.1
"""Seconds between two tries for a lock that another has; the pause doubles."""


class LockHeldError(Exception):
    """Another has the lock."""


class HasDescriptor(Protocol):
    """An open file."""

    def fileno(self) -> int:
        """Return its descriptor."""


def lock_open_file(
    file: int | HasDescriptor,
    *,
    shared: bool = False,
    patience: float = math.inf,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Lock an open file or folder until it is closed; tell whether the lock was to be had.

    Args:
        file: the open file, or its descriptor.
        shared: let others have it too that want it shared.
        patience: seconds to continue trying while another has it; 0 tries once.
        sleep: waits for the next try.
        clock: seconds.

    Raises:
        OSError: its file system has no locks.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if patience == math.inf:
        fcntl.flock(file, kind)
        return True
    deadline, pause = clock() + patience, SHORTEST_PAUSE
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if clock() >= deadline:
                return False
        sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


@contextmanager
def file_lock(path: Path, *, shared: bool = False, patience: float = math.inf) -> Iterator[None]:
    """Hold the lock file `path`, which is made where it is missing.

    Args:
        path: the lock file; its folder exists.
        shared: as of `lock_open_file`.
        patience: as of `lock_open_file`; by default, wait as long as it takes.

    Raises:
        LockHeldError: another still has it after `patience` seconds.
        OSError: the file cannot be opened for writing.
    """
    with path.open("w") as file:
        if not lock_open_file(file, shared=shared, patience=patience):
            raise LockHeldError(f"another process has the lock {path}")
        yield

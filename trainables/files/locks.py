"""Locks between processes: the operating system's (`flock`), which fall with their process, however that dies.

A lock belongs to an open file, not to its name, so a lock file is never removed: its content means nothing here.
Where a file system has no locks, a file that is renewed stands for one (`trainables.files.heartbeats`).
"""

from __future__ import annotations

import errno
import fcntl
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from trainables.files.heartbeats import Heartbeat

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.1
"""Seconds between two tries for a lock that another has; the pause doubles."""


_waits_began: dict[int, float] = {}
_seconds_waited: dict[int, float] = {}
"""By thread: when the wait it is in began, and how long all of its earlier ones took."""


LOCKLESS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
"""The numbers of errors by which a file system says that it has no locks."""


class NoLocksError(OSError):
    """The file system has no locks."""


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
        NoLocksError: its file system has no locks.
        OSError: it cannot be locked for another reason.
    """
    try:
        return _lock(file, shared, patience, sleep, clock)
    except OSError as error:
        if error.errno not in LOCKLESS:
            raise
        raise NoLocksError(error.errno, error.strerror) from error


def _lock(
    file: int | HasDescriptor,
    shared: bool,
    patience: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> bool:
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    if patience == math.inf:
        with _waiting():
            fcntl.flock(file, kind)
        return True
    deadline, pause = clock() + patience, SHORTEST_PAUSE
    with _waiting():
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
def _waiting() -> Iterator[None]:
    thread = threading.get_ident()
    _waits_began[thread] = time.monotonic()
    try:
        yield
    finally:
        # In this order, whoever looks in between counts the wait twice for a moment, and never leaves it out.
        took = time.monotonic() - _waits_began[thread]
        _seconds_waited[thread] = _seconds_waited.get(thread, 0.0) + took
        del _waits_began[thread]


def seconds_waited(thread: int) -> float:
    """Return how long a thread of this process has waited for locks so far, in seconds, the wait it is in included."""
    began = _waits_began.get(thread)
    return _seconds_waited.get(thread, 0.0) + (time.monotonic() - began if began is not None else 0.0)


@contextmanager
def file_lock(path: Path, *, shared: bool = False, patience: float = math.inf) -> Iterator[None]:
    """Hold the lock file `path`, which is made where it is missing; a heartbeat beside it where there are no locks.

    Args:
        path: the lock file; its folder exists.
        shared: as of `lock_open_file`.
        patience: as of `lock_open_file`; by default, wait as long as it takes.

    Raises:
        LockHeldError: another still has it after `patience` seconds.
        OSError: the file cannot be opened for writing.
    """
    with path.open("w") as file:
        claim = claimed(file, path.with_name(f"{path.name}.heartbeat"), shared=shared, patience=patience)
        if claim is None:
            raise LockHeldError(f"another process has the lock {path}")
        try:
            yield
        finally:
            claim.release()


class Claim:
    """The right that an open lock file stands for, held until its release: a lock, or a heartbeat."""

    def __init__(self, heartbeat: Heartbeat | None) -> None:
        """Note what stands for the lock; `None` where it is one."""
        self._heartbeat = heartbeat

    @property
    def locked(self) -> bool:
        """Whether it is a lock; where it is not, another process can take the right over."""
        return self._heartbeat is None

    @property
    def lost(self) -> bool:
        """Whether another process is known to have taken the right over."""
        return self._heartbeat is not None and self._heartbeat.lost

    def release(self) -> None:
        """End the right, but for the lock itself, which falls with the open file."""
        if self._heartbeat is not None:
            self._heartbeat.release()


def claimed(
    file: int | HasDescriptor, stand_in: Path, *, shared: bool = False, patience: float = math.inf
) -> Claim | None:
    """Take the right that an open lock file stands for; return `None` if another still has it after `patience`.

    Args:
        file: the open lock file, or its descriptor.
        stand_in: the file that is renewed where the file system has no locks.
        shared: as of `lock_open_file`; a heartbeat is never shared.
        patience: as of `lock_open_file`.

    Raises OSError when it can be neither locked nor renewed.
    """
    try:
        return Claim(None) if lock_open_file(file, shared=shared, patience=patience) else None
    except NoLocksError:
        heartbeat = Heartbeat(stand_in)
    with _waiting():
        return Claim(heartbeat) if heartbeat.take(patience) else None

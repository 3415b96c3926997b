"""Locks between processes: `flock`, which the operating system releases when the process dies in any way.

A lock belongs to an open file, not to its name. So a lock file is never removed, and its content has no meaning.

Some file systems have no locks: Lustre without `-o flock` and NFS without a lock service refuse `flock`. There, a file
that its owner keeps renewing replaces the lock, by the library filelock. A process that finds the file watches it. If
the file changes, its owner is alive. If it has not changed for `SILENCE_SECONDS`, its owner counts as dead. Clocks of
machines are never compared. A process that was suspended for longer notices the loss of its lock up to two renewals
after it wakes. Until then, work that must not be done twice needs a protection of its own.
"""

from __future__ import annotations

import errno
import fcntl
import math
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.files.atomic import open_regular

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

#: Seconds between two attempts at a lock that another process holds; the pause doubles.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.1


#: For each thread, the start of its current wait and the total time of its earlier waits. The watchdog does not count
#: waits.
_waits_began: dict[int, float] = {}
_seconds_waited: dict[int, float] = {}


#: Error numbers of file systems without locks.
LOCKLESS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class NoLocksError(OSError):
    """The file system has no locks."""


class LockHeldError(Exception):
    """Another process holds the lock."""


def lock_open_file(file: FileDescriptorLike, *, shared: bool = False, patience: float = math.inf) -> bool:
    """Lock an open file or folder until it is closed; return whether the lock was acquired.

    Args:
        file: the open file, or its descriptor.
        shared: take a shared lock, which several processes can hold at once.
        patience: seconds to keep trying while another process holds the lock; 0 tries once.

    Raises:
        NoLocksError: the file system has no locks.
        OSError: it cannot be locked for another reason.
    """
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (fcntl.LOCK_NB if patience < math.inf else 0)
    deadline, pause = time.monotonic() + patience, SHORTEST_PAUSE
    with _waiting():
        while True:
            try:
                fcntl.flock(file, kind)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
            except OSError as error:
                if error.errno not in LOCKLESS:
                    raise
                raise NoLocksError(error.errno, error.strerror) from error
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


@contextmanager
def _waiting() -> Iterator[None]:
    thread = threading.get_ident()
    _waits_began[thread] = time.monotonic()
    try:
        yield
    finally:
        # In this order, a reader in between counts the wait twice for a moment, but never misses it.
        took = time.monotonic() - _waits_began[thread]
        _seconds_waited[thread] = _seconds_waited.get(thread, 0.0) + took
        del _waits_began[thread]


def seconds_waited(thread: int) -> float:
    """Return the seconds that a thread of this process has waited for locks, including its current wait."""
    began = _waits_began.get(thread)
    return _seconds_waited.get(thread, 0.0) + (time.monotonic() - began if began is not None else 0.0)


@contextmanager
def file_lock(path: Path, *, patience: float = math.inf) -> Iterator[None]:
    """Hold the lock file `path`, which is made if missing; without locks, a heartbeat file next to it.

    Args:
        path: the lock file; its folder exists.
        patience: see `lock_open_file`; by default, wait without limit.

    Raises:
        LockHeldError: another process still holds it after `patience` seconds.
        OSError: the file cannot be opened for writing.
    """
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT), "w") as file:
        claim = claimed(file, path.with_name(f"{path.name}.heartbeat"), patience=patience)
        if claim is None:
            raise LockHeldError(f"another process holds the lock {path}")
        try:
            yield
        finally:
            claim.release()


class Claim:
    """An acquired lock, which ends when its file is closed.

    Attributes:
        locked: whether it is a lock of the operating system. Otherwise it is a heartbeat, which another process can
            take over.
    """

    locked = True

    @property
    def lost(self) -> bool:
        """Whether another process has taken the lock over."""
        return False

    def release(self) -> None:
        """Release the lock; closing the file releases a lock of the operating system."""


def claimed(file: FileDescriptorLike, stand_in: Path, *, patience: float = math.inf) -> Claim | None:
    """Acquire the lock of an open lock file; return `None` if another process still holds it after `patience`.

    Args:
        file: the open lock file, or its descriptor.
        stand_in: heartbeat file, used if the file system has no locks.
        patience: see `lock_open_file`.

    Raises OSError if the file can be neither locked nor renewed.
    """
    try:
        return Claim() if lock_open_file(file, patience=patience) else None
    except NoLocksError:
        heartbeat = Heartbeat(stand_in)
    with _waiting():
        return heartbeat if heartbeat.take(patience) else None


#: Seconds between two renewals of a heartbeat: few enough requests for a file server with many sweeps.
BEAT_SECONDS = 5.0

#: Four renewals, since a busy server can delay some of them.
SILENCE_SECONDS = 20.0

#: Seconds between two checks of another process's heartbeat.
LOOK_SECONDS = 0.5


class Heartbeat(Claim):
    """A lock in the form of a file at `path` that a thread renews: a lease of the library filelock."""

    locked = False

    def __init__(self, path: Path) -> None:
        """Prepare to acquire the lock; the folder of `path` exists."""
        from filelock import SoftFileLease  # takes 0.1 s, and few file systems need it

        self._path = path
        self._lease = SoftFileLease(
            path, lease_duration=SILENCE_SECONDS, heartbeat_interval=BEAT_SECONDS, thread_local=False
        )

    @property
    def lost(self) -> bool:
        """Whether another process has taken the lock over, as of the last renewal."""
        return self._lease.compromise is not None

    def take(self, patience: float = math.inf) -> bool:
        """Acquire the lock; return whether it was acquired.

        Gives up once another process has renewed its heartbeat and `patience` seconds have passed.

        Raises OSError if the folder cannot be written to.
        """
        from filelock import Timeout

        began, seen = time.monotonic(), set[int]()

        def is_held() -> bool:
            # Opening it makes a network file system ask the server instead of its cache.
            with suppress(OSError), os.fdopen(open_regular(self._path)) as file:
                seen.add(os.fstat(file.fileno()).st_mtime_ns)
            return len(seen) > 1 and time.monotonic() - began >= patience

        try:
            self._lease.acquire(threading.TIMEOUT_MAX, LOOK_SECONDS, cancel_check=is_held)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        """Release the lock, unless another process has taken it over."""
        self._lease.release()


#: Younger folders are left alone, since their processes may be about to lock them.
NEW_SECONDS = 60.0


class Scratch:
    """A temporary folder of this process; removed at the context's end, by `remove`, or when nothing refers to it.

    The process holds a lock on the folder, which ends when the process dies in any way. The next process on this
    machine that makes a folder of the same kind removes the folders without a lock.

    Example:
        >>> with Scratch("example-") as folder:
        ...     folder.is_dir()
        True
        >>> folder.exists()
        False
    """

    def __init__(self, prefix: str) -> None:
        """Make a folder whose name begins with `prefix`, and remove such folders of processes that died."""
        _remove_abandoned(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(NoLocksError):  # then only this process removes it
            lock_open_file(lock, patience=0)
        self.remove = weakref.finalize(self, _remove, self.path, lock)

    def __enter__(self) -> Path:
        """Return the folder."""
        return self.path

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Remove the folder."""
        self.remove()


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # gone meanwhile, another user's, or no folder
        try:
            status = os.fstat(lock)
            old = status.st_uid == os.getuid() and time.time() - status.st_mtime > NEW_SECONDS
            if old and lock_open_file(lock, patience=0):  # otherwise its process is alive and holds the lock
                shutil.rmtree(folder, ignore_errors=True)
        except NoLocksError:
            return  # without locks, nothing shows which processes are alive
        finally:
            os.close(lock)

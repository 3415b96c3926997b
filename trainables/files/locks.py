"""Locks between processes: the operating system's (`flock`), which fall with their process, however that dies.

A lock belongs to an open file, not to its name, so a lock file is never removed: its content means nothing here.

Where a file system has no locks (Lustre without `-o flock` and NFS without a lock service refuse `flock`), a file that
is renewed stands for one, by the library filelock. Who finds it watches it: if it changes, its process is alive; if it
has not changed for `SILENCE_SECONDS`, its process is taken for gone. Clocks of machines are never compared. A process
that was stopped for longer than that finds its right gone when it wakes, up to two beats later: what must not happen
twice has to be safe by itself until then.
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

from trainables.files.regular import open_regular

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

#: Seconds between two tries for a lock that another has; the pause doubles.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.1


_waits_began: dict[int, float] = {}
#: By thread: when the wait it is in began, and how long all of its earlier ones took.
_seconds_waited: dict[int, float] = {}


#: The numbers of errors by which a file system says that it has no locks.
LOCKLESS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)


class NoLocksError(OSError):
    """The file system has no locks."""


class LockHeldError(Exception):
    """Another has the lock."""


def lock_open_file(file: FileDescriptorLike, *, shared: bool = False, patience: float = math.inf) -> bool:
    """Lock an open file or folder until it is closed; tell whether the lock was to be had.

    Args:
        file: the open file, or its descriptor.
        shared: let others have it too that want it shared.
        patience: seconds to continue trying while another has it; 0 tries once.

    Raises:
        NoLocksError: its file system has no locks.
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
    with os.fdopen(open_regular(path, os.O_RDWR | os.O_CREAT), "w") as file:
        claim = claimed(file, path.with_name(f"{path.name}.heartbeat"), shared=shared, patience=patience)
        if claim is None:
            raise LockHeldError(f"another process has the lock {path}")
        try:
            yield
        finally:
            claim.release()


class Claim:
    """The right that an open lock file stands for: a lock, which falls with the open file.

    Attributes:
        locked: whether it is a lock; where it is a heartbeat, another process can take the right over.
    """

    locked = True

    @property
    def lost(self) -> bool:
        """Whether another process is known to have taken the right over."""
        return False

    def release(self) -> None:
        """End the right, but for the lock itself."""


def claimed(
    file: FileDescriptorLike, stand_in: Path, *, shared: bool = False, patience: float = math.inf
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
        return Claim() if lock_open_file(file, shared=shared, patience=patience) else None
    except NoLocksError:
        heartbeat = Heartbeat(stand_in)
    with _waiting():
        return heartbeat if heartbeat.take(patience) else None


BEAT_SECONDS = 5.0

#: Four beats: a busy server may answer one of them late.
SILENCE_SECONDS = 20.0

LOOK_SECONDS = 0.5


class Heartbeat(Claim):
    """The right that the file at `path` stands for, which a thread renews: a lease of the library filelock."""

    locked = False

    def __init__(self, path: Path) -> None:
        """Prepare to take the right; the folder of `path` exists."""
        from filelock import SoftFileLease  # a tenth of a second, which few need

        self._path = path
        self._lease = SoftFileLease(
            path, lease_duration=SILENCE_SECONDS, heartbeat_interval=BEAT_SECONDS, thread_local=False
        )

    @property
    def lost(self) -> bool:
        """Whether another process has taken the right over, as of the last beat."""
        return self._lease.compromise is not None

    def take(self, patience: float = math.inf) -> bool:
        """Take the right; tell whether it was to be had within `patience` seconds of another process's sign of life.

        Raises OSError when the folder cannot be written to.
        """
        from filelock import Timeout

        began, seen = time.monotonic(), set[int]()

        def is_held() -> bool:
            with suppress(OSError), os.fdopen(open_regular(self._path)) as file:  # opened: a network file system asks
                seen.add(os.fstat(file.fileno()).st_mtime_ns)
            return len(seen) > 1 and time.monotonic() - began >= patience

        try:
            self._lease.acquire(threading.TIMEOUT_MAX, LOOK_SECONDS, cancel_check=is_held)
        except Timeout:
            return False
        return True

    def release(self) -> None:
        """End the right, unless another process has it."""
        self._lease.release()


#: A folder this young is left alone: its process may be about to lock it.
NEW_SECONDS = 60.0


class Scratch:
    """A folder of this process's own; removed on leaving the context, on `remove`, or when nothing refers to it.

    It is locked by its process, and the lock falls with that, however it dies. Whoever makes the next folder of the
    same kind on this machine removes those that nobody holds.
    """

    def __init__(self, prefix: str) -> None:
        """Make a folder whose name begins with `prefix`, and remove such folders of processes that died."""
        _remove_abandoned(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(NoLocksError):  # then nobody removes it but this process
            lock_open_file(lock, patience=0)
        self.remove = weakref.finalize(self, _remove, self.path, lock)

    def __enter__(self) -> Path:
        """Give the folder."""
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
            found = os.fstat(lock)
            old = found.st_uid == os.getuid() and time.time() - found.st_mtime > NEW_SECONDS
            if old and lock_open_file(lock, patience=0):  # else its process lives, and holds the lock
                shutil.rmtree(folder, ignore_errors=True)
        except NoLocksError:
            return  # whose processes live cannot be told
        finally:
            os.close(lock)

"""Locks between processes: the operating system's (`flock`), which fall with their process, however that dies.

A lock belongs to an open file, not to its name, so a lock file is never removed: its content means nothing here.

Where a file system has no locks (Lustre without `-o flock` and NFS without a lock service refuse `flock`), a file that
is renewed stands for one. It is made under a name that can be made once, and renewed by a thread every few seconds. Who
finds it watches it: if it changes, its process is alive; if it has not changed for `SILENCE_SECONDS`, its process is
taken for gone. Clocks of machines are never compared, and the file is opened anew for each look, which makes a network
file system ask its server. A process that was stopped for longer than that finds its right gone when it wakes, up to
one beat later: what must not happen twice has to be safe by itself until then.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trainables.files.atomic import temporary_name

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
    with path.open("w") as file:
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
        lost: whether another process is known to have taken it over.
    """

    locked = True
    lost = False

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

_log = logging.getLogger(__name__)

#: Bytes of the file: all beats are as long, so that one is written in place and in one piece.
_LENGTH = 256


class Beating:
    """A right that one process has while it shows, every few seconds, that it lives; `beat` shows it.

    Attributes:
        lost: whether another process is known to have taken the right over.
    """

    def __init__(self, name: str, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._name, self._clock, self._sleep = name, clock, sleep
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self.lost = False

    def start(self) -> None:
        """Show that this process lives from now on, whatever its other threads wait for."""
        self._thread.start()

    def beat(self) -> None:
        """Show that this process lives, unless another has taken the right over. Raises OSError."""
        raise NotImplementedError

    def _end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _live(self) -> None:
        while not self._ended.wait(BEAT_SECONDS) and not self.lost:
            try:
                self.beat()
            except OSError as error:  # a full disk, or a server that is away: it is tried again
                _log.warning("the %s could not be renewed: %s", self._name, error)

    def _sign(self) -> bytes:
        """Return what shows that this process lives: another text each time that `beat` has counted."""
        holder = {"token": self._token, "beats": self._beats, "pid": os.getpid(), "host": socket.gethostname()[:100]}
        return json.dumps(holder).encode()


class Heartbeat(Beating, Claim):
    """The right that the file at `path` stands for."""

    locked = False

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Prepare to take the right; the folder of `path` exists."""
        super().__init__("heartbeat", clock, sleep)
        self._path = path

    def take(self, patience: float = math.inf) -> bool:
        """Take the right; tell whether it was to be had within `patience` seconds of another process's sign of life.

        Raises OSError when the folder cannot be written to.
        """
        began, seen, since = self._clock(), b"", self._clock()
        while not self._make():
            now = self._read()
            if now != seen:
                alive = bool(seen) and bool(now)
                seen, since = now, self._clock()
                if alive and self._clock() - began >= patience:
                    return False
            elif self._clock() - since >= SILENCE_SECONDS:
                self._remove(seen)
            self._sleep(LOOK_SECONDS)
        self.start()
        return True

    def beat(self) -> None:
        """Renew the file, unless another process has taken the right over. Raises OSError."""
        try:
            descriptor = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            self.lost = True
            return
        try:
            if not self._is_mine(os.pread(descriptor, _LENGTH, 0)):
                self.lost = True
                return
            self._beats += 1
            os.pwrite(descriptor, self._content(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """End the right, unless another process has it."""
        self._end()
        if self._is_mine(self._read()):
            self._path.unlink(missing_ok=True)

    def _make(self) -> bool:
        """Make the file unless it is there: a link is made in one step, on network file systems as well."""
        temporary = self._path.with_name(temporary_name())
        try:
            temporary.write_bytes(self._content())
            os.link(temporary, self._path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _remove(self, seen: bytes) -> None:
        """Remove the file of a process that is gone; another may do the same, and have taken the right by then."""
        aside = self._path.with_name(temporary_name())
        try:
            self._path.rename(aside)
        except FileNotFoundError:
            return
        with suppress(FileExistsError):
            if aside.read_bytes() != seen:
                os.link(aside, self._path)
        aside.unlink(missing_ok=True)

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _content(self) -> bytes:
        return self._sign().ljust(_LENGTH)

    def _is_mine(self, content: bytes) -> bool:
        return f'"token": "{self._token}"'.encode() in content


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

"""One driver per sweep: a lock held while the driver lives, and a record of who holds it.

The lock is the operating system's (`flock`): it falls with the process, however that dies, so a killed driver
never blocks its resume. The record next to it (host, pid, heartbeat) is what the error names.

Where the folder's file system has no locks, as Lustre or NFS may have none, a file that the driver renews stands for
the lock (`trainables.files.locks`): its resume then waits until a killed driver has been silent for 20 s.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from trainables.files.locks import Claim, NoLocksError, claimed, lock_open_file

HEARTBEAT_SECONDS = 5.0

HEARTBEAT = "driver.heartbeat"
"""The file that stands for the lock where there are none."""

LONG_SILENCE_SECONDS = 120.0
"""Without locks, a record that is older than this is a dead driver's; clocks of machines differ by less."""

GLANCE_SECONDS = 1.0
"""Who only asks for the holder has the lock for a moment; a driver waits that much before it believes in another."""


class Lease:
    """The right to drive a sweep, as a context manager."""

    def __init__(self, path: Path) -> None:
        """Prepare a lease whose record is `path`."""
        self._path = path
        self._descriptor: int | None = None
        self._claim: Claim | None = None
        self._beaten = -math.inf

    def __enter__(self) -> Lease:
        """Take the lease. Raises SweeperError naming the holder when another driver has it, or it cannot be taken."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise SweeperError(
                f"the results folder {self._path.parent} cannot be written to: {error.strerror}",
                "make it writable, or choose another with --output",
            ) from error
        if not self._take(descriptor):
            driver = _read(descriptor)
            os.close(descriptor)
            raise SweeperError(
                f"the sweep {self._path.parent.name!r} is already being driven by process "
                f"{driver.get('pid', '?')} on {driver.get('host', '?')}",
                f"wait for it, or stop it with `sweeper stop {SweepPaths(self._path.parent).in_commands}`",
            )
        self._descriptor = descriptor
        try:
            self.beat(force=True)
        except (OSError, SweeperError):  # a full disk: the lock must not outlive the attempt
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Release the lease."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    @property
    def locked(self) -> bool:
        """Whether the lease is a lock; where it is not, another driver may have taken it."""
        return self._claim is None or self._claim.locked

    def _take(self, descriptor: int) -> bool:
        """Take the lock, or what stands for it; return whether it was acquired. Raises SweeperError."""
        try:
            self._claim = claimed(descriptor, self._path.with_name(HEARTBEAT), patience=GLANCE_SECONDS)
        except OSError as error:
            os.close(descriptor)
            raise SweeperError(
                f"the file system of {self._path.parent} supports neither locks nor links: {error.strerror}",
                "keep results on one that does, such as a local disk or NFS, or in an object store (--output s3://…)",
            ) from error
        return self._claim is not None

    def beat(self, *, force: bool = False) -> None:
        """Renew the heartbeat when it is due.

        Raises SweeperError when another driver has taken the sweep over, which can be where there are no locks.
        """
        if self._claim is not None and self._claim.lost:
            driver = self._record()
            raise SweeperError(
                f"process {driver.get('pid', '?')} on {driver.get('host', '?')} has taken the sweep "
                f"{self._path.parent.name!r} over: this driver's lease expired, so it stops",
                f"every record so far is kept; see `sweeper status {SweepPaths(self._path.parent).in_commands}`",
            )
        # The clock on the wall may be put back; the heart continues.
        now = time.monotonic()
        if self._descriptor is None or (not force and now - self._beaten < HEARTBEAT_SECONDS):
            return
        record = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "heartbeat": time.time()}).encode()
        os.pwrite(self._descriptor, record, 0)
        os.ftruncate(self._descriptor, len(record))
        self._beaten = now

    def _record(self) -> dict[str, Any]:
        return _read(self._descriptor) if self._descriptor is not None else {}


def holder(path: Path) -> dict[str, Any] | None:
    """Return who drives the sweep now (`host`, `pid`, `heartbeat`), or `None` if no process does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would block for ever
    except FileNotFoundError:
        return None
    try:
        return None if lock_open_file(descriptor, shared=True, patience=0) else _read(descriptor)
    except NoLocksError:
        found, beaten = _read(descriptor), path.with_name(HEARTBEAT).exists()
        age = time.time() - float(found.get("heartbeat", 0.0))
        return found if beaten and age < LONG_SILENCE_SECONDS else None
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> dict[str, Any]:
    try:
        fields = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        # The holder is between taking the lock and writing its record.
        return {}
    return fields if isinstance(fields, dict) else {}

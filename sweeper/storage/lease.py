"""Leases: a sweep in a folder or a store has at most one driver, and a record names the driver.

In a folder the lease is an operating system lock (`flock`). The system releases it when the process dies, however that
happens, so a killed driver never blocks its resume. Error messages name the driver from a record next to the lock
(host, pid, heartbeat). If the file system has no locks (some Lustre and NFS mounts), the driver renews a heartbeat file
instead (`trainables.files.locks`). Then a resume on another machine waits until the driver has been silent for 20 s.

A store has no locks. There a driver holds a term (`sweeper.storage.store_journal`) and rewrites a lease object at
regular intervals. A second driver watches this object. If the object changes, the first driver is alive. If it does not
change for `SILENCE_SECONDS`, the first driver is presumed dead and a new term begins. Clocks of different machines are
never compared. The first driver may only have been paused. Therefore a driver acts on its own journal records only
under one of two conditions: its last confirmed heartbeat is younger than `VALID_SECONDS`, or it has checked that no
newer term has begun. A driver that has lost its term stops.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.storage.store_journal import TERMS, Term, count_of, read_terms, settled, term_names
from trainables.files.atomic import IrregularFileError, open_regular, read_bytes
from trainables.files.locks import BEAT_SECONDS, SILENCE_SECONDS, Claim, NoLocksError, claimed, lock_open_file
from trainables.files.stores.object_store import Store, patiently

#: File that replaces the lock on a file system without locks.
HEARTBEAT = "driver.heartbeat"

#: Object that holds the lease in a store.
LEASE = "lease.json"

#: If the last heartbeat is at most this many seconds old, no other driver can have taken the sweep over. The margin of
#: one beat covers a slow store, whose client retries an unanswered request for 6 s.
VALID_SECONDS = SILENCE_SECONDS - BEAT_SECONDS

#: A record without a lock belongs to a dead driver if it is at least this many seconds old. The limit is generous,
#: because it compares the clocks of two machines.
LONG_SILENCE_SECONDS = 120.0

#: Seconds that a driver waits for the lock, because `holder` also takes it for a moment to check whether it is free.
GLANCE_SECONDS = 1.0

#: The driver of a sweep: `host`, `pid`, and in a folder `heartbeat`; empty between taking the lock and writing it.
Holder = Mapping[str, Any]


class LeaseLostError(SweeperError):
    """Another driver has taken the sweep over; this one must not write any more."""


def process_of(driver: Holder) -> str:
    """Return a driver as `process PID on HOST`."""
    return f"process {driver.get('pid', '?')} on {driver.get('host', '?')}"


def already_driven(name: str, by: Holder, stop: str) -> SweeperError:
    """Return the error for a second driver of a sweep.

    Args:
        name: Name of the sweep.
        by: The first driver.
        stop: Name or address of the sweep to give to `sweeper stop`.
    """
    return SweeperError(
        f"the sweep {name!r} is already being driven by {process_of(by)}",
        f"wait for it, or stop it with `sweeper stop {stop}`",
    )


def taken_over(name: str, by: str, remedy: str) -> LeaseLostError:
    """Return the error for a driver that has lost its sweep to `by`."""
    return LeaseLostError(f"{by} has taken the sweep {name!r} over: this driver's lease expired, so it stops", remedy)


class Lease:
    """The right to drive a sweep, as a context manager."""

    def __init__(self, path: Path) -> None:
        """Prepare a lease whose record is `path`."""
        self._path = path
        self._descriptor: int | None = None
        self._claim = Claim()
        self._beaten = -math.inf

    def __enter__(self) -> Lease:
        """Take the lease. Raises SweeperError if it cannot be taken; if another driver holds it, the error names it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = open_regular(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise SweeperError(
                f"the results folder {self._path.parent} cannot be written to: {error.strerror}",
                "make it writable, or choose another with --output",
            ) from error
        try:
            claim = claimed(descriptor, self._path.with_name(HEARTBEAT), patience=GLANCE_SECONDS)
        except OSError as error:
            os.close(descriptor)
            raise SweeperError(
                f"the file system of {self._path.parent} supports neither locks nor links: {error.strerror}",
                "keep results on one that does, such as a local disk or NFS, or in an object store (--output s3://…)",
            ) from error
        if claim is None:
            driver = _read(descriptor)
            os.close(descriptor)
            raise already_driven(self._path.parent.name, driver, SweepPaths(self._path.parent).in_commands)
        self._descriptor, self._claim = descriptor, claim
        try:
            self.beat(force=True)
        except (OSError, SweeperError):  # for example a full disk: a failed attempt must release the lock
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Release the lease."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._claim.release()
        self._claim = Claim()

    @property
    def locked(self) -> bool:
        """Whether the lease is an operating system lock; without such a lock, another driver can take it over."""
        return self._claim.locked

    @property
    def lost(self) -> bool:
        """Whether another driver is known to have taken the sweep over (only without operating system locks)."""
        return self._claim.lost

    def require(self) -> None:
        """Raise LeaseLostError if another driver has taken the sweep over."""
        if self.lost:
            by = _read(self._descriptor) if self._descriptor is not None else {}
            see = f"see `sweeper status {SweepPaths(self._path.parent).in_commands}`"
            raise taken_over(self._path.parent.name, process_of(by), f"every record so far is kept; {see}")

    def beat(self, *, force: bool = False) -> None:
        """Renew the heartbeat if it is due. Raises LeaseLostError."""
        self.require()
        # Monotonic: a wall clock that is set back would delay the next beat.
        now = time.monotonic()
        if self._descriptor is None or (not force and now - self._beaten < BEAT_SECONDS):
            return
        record = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "heartbeat": time.time()}).encode()
        # Write in place, not by rename: the lock belongs to this file, and readers accept a partly written record.
        os.pwrite(self._descriptor, record, 0)
        os.ftruncate(self._descriptor, len(record))
        self._beaten = now


def holder(path: Path, store: Store | None = None) -> Holder | None:
    """Return the current driver of a sweep; `None` if no process drives it.

    Args:
        path: Lease of the sweep in its folder.
        store: Store of the sweep, if it is in one.
    """
    if store is not None:
        entry, content = store.entries(recursive=False).get(LEASE), store.get(LEASE)
        fresh = entry is not None and time.time() - entry.written / 1e9 < LONG_SILENCE_SECONDS
        return _fields(content) if fresh and content is not None else None
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, IrregularFileError):  # no driver makes a pipe or a folder there
        return None
    try:
        # Take a shared lock, so that two readers do not mistake each other for a driver.
        return None if lock_open_file(descriptor, shared=True, patience=0) else _read(descriptor)
    except NoLocksError:
        driver, has_heartbeat = _read(descriptor), path.with_name(HEARTBEAT).exists()
        last = driver.get("heartbeat")
        fresh = isinstance(last, float) and time.time() - last < LONG_SILENCE_SECONDS
        return driver if has_heartbeat and fresh else None
    finally:
        os.close(descriptor)


def holder_of_copy(path: Path) -> Holder | None:
    """Return the driver of a sweep in a store from a local copy of its lease; `None` if no process drives it."""
    try:
        content, age = read_bytes(path), time.time() - path.stat().st_mtime
    except (FileNotFoundError, IrregularFileError):
        return None
    return _fields(content) if age < LONG_SILENCE_SECONDS else None


def _read(descriptor: int) -> Holder:
    return _fields(os.pread(descriptor, 4096, 0))


def _fields(content: bytes) -> Holder:
    """Parse a lease; return an empty mapping for invalid content."""
    # The holder may be writing it at this moment, or somebody else may have written it.
    try:
        fields = json.loads(content)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _since_boot() -> float:
    """Return the seconds since boot, including sleep where the system counts it."""
    # After an hour of sleep, a laptop's lease must not count as fresh, but Linux's monotonic clock stops during sleep.
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


_log = logging.getLogger("sweeper.storage")


class StoreLease:
    """The right to drive one sweep in a store, kept by a heartbeat every few seconds.

    Attributes:
        lost: Whether another driver is known to have taken the sweep over.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        clock: Callable[[], float] = _since_boot,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare the lease of the sweep `name` in `store`; tests pass their own `clock` and `sleep`."""
        self._clock, self._sleep = clock, sleep
        # Host and process id can repeat (containers are often process 1), so a random token identifies the driver.
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._ended = threading.Event()
        # A daemon thread: the heartbeat must not keep a driver alive that ends with an error.
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)
        self.lost = False
        self._store, self._sweep = store, name
        self._term: Term | None = None
        self._confirmed = 0.0
        self._taker = ""

    @property
    def term(self) -> Term:
        """The term that this driver holds, or held."""
        assert self._term is not None, "the lease was not taken"
        return self._term

    @property
    def held(self) -> bool:
        """Whether the lease was taken."""
        return self._term is not None

    def take(self) -> None:
        """Take the lease, after waiting until a silent holder is presumed dead.

        Raises SweeperError naming the holder if it is alive, or if another driver took the lease at the same moment.
        """
        self._wait_for_silence()
        # Records of earlier terms count up to here; later records of an earlier driver lie beyond and are ignored.
        terms = read_terms(self._store)
        after = count_of(terms, settled(terms, self._store.entries("journal")))
        self._begin(max((term.number for term in terms), default=0) + 1, after)
        self.beat()
        self.require()

    def begin_again(self, after: int) -> None:
        """Begin another term that keeps only the first `after` records, to discard damaged records."""
        self.require()
        self._begin(self.term.number + 1, after)

    def beat(self) -> None:
        """Write a heartbeat and check that the sweep is still this driver's. Raises StoreError."""
        # Note the time before the request: the lease is valid from when the request was sent, not from when it was
        # answered.
        began, self._beats = self._clock(), self._beats + 1
        holder = {"token": self._token, "beats": self._beats, "pid": os.getpid(), "host": socket.gethostname()[:100]}
        self._store.put(LEASE, json.dumps(holder).encode())
        self._confirm(began)

    def require(self) -> None:
        """Return only if this driver certainly still holds the sweep; ask the store if the last heartbeat is too old.

        Raises:
            LeaseLostError: Another driver has taken it over.
            StoreError: The store cannot be asked.
        """
        if not self.lost and self._clock() - self._confirmed >= VALID_SECONDS:
            patiently(lambda: self._confirm(self._clock()), sleep=self._sleep, clock=self._clock)
        if self.lost:
            remedy = f"what it measured since then is not used; see `sweeper status {self._sweep} --watch`"
            raise taken_over(self._sweep, self._taker, remedy)

    def release(self) -> None:
        """Delete the lease, unless another driver has taken it. Raises StoreError."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._term is None or self.lost:
            return
        self._confirm(self._clock())
        if not self.lost:
            self._store.delete([LEASE])

    def start(self) -> None:
        """Start the heartbeat thread, which continues even while other threads wait."""
        self._thread.start()

    def _live(self) -> None:
        while not self._ended.wait(BEAT_SECONDS) and not self.lost:
            try:
                self.beat()
            except OSError as error:  # the store is out of reach: try again; `require` checks before each write
                _log.warning("the lease could not be renewed: %s", error)

    def _wait_for_silence(self) -> None:
        seen = self._store.get(LEASE)
        began = self._clock()
        while seen is not None and self._clock() - began < SILENCE_SECONDS:
            self._sleep(1.0)
            now = self._store.get(LEASE)
            if now is not None and now != seen:  # it changed, so its driver is alive
                raise self._taken(now)
            seen = now

    def _begin(self, number: int, after: int) -> None:
        term = Term(number, self._token, after)
        # With a conditional write, only one of two drivers can create the same term.
        if not self._store.create(term.object_name, term.to_bytes()):
            raise self._taken(self._store.get(LEASE))
        self._term = term

    def _confirm(self, asked: float) -> None:
        """Check whether a newer term has begun or another driver holds this one; `asked` is when the check began."""
        newest = term_names(self._store.entries(TERMS, recursive=False))[-1:]
        held = self._store.get(self.term.object_name)
        if newest > [self.term.object_name] or held != self.term.to_bytes():
            fields = _fields(self._store.get(LEASE) or b"")
            other = fields if fields.get("token") != self._token else {}
            self._taker = process_of(other) if {"pid", "host"} <= other.keys() else "another driver"
            self.lost = True
        else:
            self._confirmed = max(self._confirmed, asked)

    def _taken(self, holder: bytes | None) -> SweeperError:
        return already_driven(self._sweep, _fields(holder or b""), self._store.uri)

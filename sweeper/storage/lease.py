"""One driver a sweep: a lease that it holds while it lives, in a folder or in a store, and a record of who holds it.

In a folder the lease is a lock of the operating system's (`flock`): it falls with the process, however that dies, so a
killed driver never blocks its resume. The record next to it (host, pid, heartbeat) is what the error names. Where the
folder's file system has no locks, as Lustre or NFS may have none, a file that the driver renews stands for the lock
(`trainables.files.locks`): its resume on another machine then waits until a killed driver has been silent for 20 s.

A store has no locks. There a driver holds a term (`sweeper.storage.store_journal`) and an object that it writes again
and again while it lives. Who finds the object watches it: if it changes, its driver is alive; if it has not changed for
`SILENCE_SECONDS`, its driver is taken for gone, and a new term begins. Clocks of different machines are never compared.
A driver may only have been paused. So it acts on what it put into the journal while its own last sign of life is
younger than `VALID_SECONDS`, or after it has looked whether a newer term has begun. One that has lost its term stops.
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
from trainables.files.locks import BEAT_SECONDS, SILENCE_SECONDS, Claim, NoLocksError, claimed, lock_open_file
from trainables.files.regular import IrregularFileError, open_regular, read_bytes
from trainables.files.stores.object_store import Store, patiently

#: The file that stands for the lock where there are none.
HEARTBEAT = "driver.heartbeat"

#: The object of a lease in a store.
LEASE = "lease.json"

#: So long after its last sign of life a driver knows that nobody can have taken the sweep over. A beat may be late by a
#: store's slow answer: its client tries an unanswered request again for 6 s.
VALID_SECONDS = SILENCE_SECONDS - BEAT_SECONDS

#: Without locks, a record that is older than this is a dead driver's; clocks of machines differ by less.
LONG_SILENCE_SECONDS = 120.0

#: Who only asks for the holder has the lock for a moment; a driver waits that much before it believes in another.
GLANCE_SECONDS = 1.0

#: Who drives a sweep: `host`, `pid`, and in a folder `heartbeat`; nothing is known between lock and record.
Holder = Mapping[str, Any]


class LeaseLostError(SweeperError):
    """Another driver has taken the sweep over; this one may not write any more."""


def process_of(driver: Holder) -> str:
    """Return who drives a sweep, in words."""
    return f"process {driver.get('pid', '?')} on {driver.get('host', '?')}"


def already_driven(name: str, by: Holder, stop: str) -> SweeperError:
    """Return the error of a driver that comes second; `stop` is the sweep as the first is stopped by it."""
    return SweeperError(
        f"the sweep {name!r} is already being driven by {process_of(by)}",
        f"wait for it, or stop it with `sweeper stop {stop}`",
    )


def taken_over(name: str, by: str, remedy: str) -> LeaseLostError:
    """Return the error of a driver that has lost its sweep."""
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
        """Take the lease. Raises SweeperError naming the holder when another driver has it, or it cannot be taken."""
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
        except (OSError, SweeperError):  # a full disk: the lock must not outlive the attempt
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
        """Whether the lease is a lock; where it is not, another driver may have taken it."""
        return self._claim.locked

    @property
    def lost(self) -> bool:
        """Whether another driver is known to have taken the sweep over, which can be where there are no locks."""
        return self._claim.lost

    def require(self) -> None:
        """Return if the sweep is still this driver's. Raises LeaseLostError."""
        if self.lost:
            by = _read(self._descriptor) if self._descriptor is not None else {}
            see = f"see `sweeper status {SweepPaths(self._path.parent).in_commands}`"
            raise taken_over(self._path.parent.name, process_of(by), f"every record so far is kept; {see}")

    def beat(self, *, force: bool = False) -> None:
        """Renew the heartbeat when it is due. Raises LeaseLostError."""
        self.require()
        # The clock on the wall may be put back; the heart continues.
        now = time.monotonic()
        if self._descriptor is None or (not force and now - self._beaten < BEAT_SECONDS):
            return
        record = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "heartbeat": time.time()}).encode()
        os.pwrite(self._descriptor, record, 0)
        os.ftruncate(self._descriptor, len(record))
        self._beaten = now


def holder(path: Path, store: Store | None = None) -> Holder | None:
    """Return who drives the sweep with the lease `path` now, in `store` if it is there; `None` if no process does."""
    if store is not None:
        entry, content = store.entries(recursive=False).get(LEASE), store.get(LEASE)
        fresh = entry is not None and time.time() - entry.written / 1e9 < LONG_SILENCE_SECONDS
        return _fields(content) if fresh and content is not None else None
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, IrregularFileError):  # a driver's own is a file
        return None
    try:
        return None if lock_open_file(descriptor, shared=True, patience=0) else _read(descriptor)
    except NoLocksError:
        found, beaten = _read(descriptor), path.with_name(HEARTBEAT).exists()
        last = found.get("heartbeat")
        fresh = isinstance(last, float) and time.time() - last < LONG_SILENCE_SECONDS
        return found if beaten and fresh else None
    finally:
        os.close(descriptor)


def holder_of_copy(path: Path) -> Holder | None:
    """Return who drives a sweep in a store, from a copy of its lease; `None` if no process does."""
    try:
        content, age = read_bytes(path), time.time() - path.stat().st_mtime
    except (FileNotFoundError, IrregularFileError):
        return None
    return _fields(content) if age < LONG_SILENCE_SECONDS else None


def _read(descriptor: int) -> Holder:
    return _fields(os.pread(descriptor, 4096, 0))


def _fields(content: bytes) -> Holder:
    """Return what a lease says, nothing where it is none: anybody may have written it, or its holder is about to."""
    try:
        fields = json.loads(content)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _since_boot() -> float:
    """Return seconds that continue to count while this machine sleeps, where its system counts them."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


_log = logging.getLogger("sweeper.storage")


class StoreLease:
    """The right to drive one sweep in a store, while its driver shows, every few seconds, that it lives.

    Attributes:
        lost: whether another driver is known to have taken the right over.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        clock: Callable[[], float] = _since_boot,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to take the sweep `name`, which is in `store`."""
        self._clock, self._sleep = clock, sleep
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._ended = threading.Event()
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
        """Take the lease, waiting until a silent holder is known to be gone.

        Raises SweeperError naming the holder when it is alive, or when another took the lease at the same moment.
        """
        self._wait_for_silence()
        terms = read_terms(self._store)
        after = count_of(terms, settled(terms, self._store.entries("journal")))
        self._begin(max((term.number for term in terms), default=0) + 1, after)
        self.beat()
        self.require()

    def begin_again(self, after: int) -> None:
        """Begin another term, before which no more than `after` records count: where damaged ones are discarded."""
        self.require()
        self._begin(self.term.number + 1, after)

    def beat(self) -> None:
        """Show that the driver lives, and see whether the sweep is still its own. Raises StoreError."""
        began, self._beats = self._clock(), self._beats + 1
        holder = {"token": self._token, "beats": self._beats, "pid": os.getpid(), "host": socket.gethostname()[:100]}
        self._store.put(LEASE, json.dumps(holder).encode())
        self._confirm(began)

    def require(self) -> None:
        """Return if the sweep is certainly still this driver's; the store is asked where that is not known.

        Raises:
            LeaseLostError: another driver has taken it over.
            StoreError: the store cannot be asked.
        """
        if not self.lost and self._clock() - self._confirmed >= VALID_SECONDS:
            patiently(lambda: self._confirm(self._clock()), sleep=self._sleep, clock=self._clock)
        if self.lost:
            remedy = f"what it measured since then is not used; see `sweeper status {self._sweep} --watch`"
            raise taken_over(self._sweep, self._taker, remedy)

    def release(self) -> None:
        """End the lease, unless another driver has taken it. Raises StoreError."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._term is None or self.lost:
            return
        self._confirm(self._clock())
        if not self.lost:
            self._store.delete([LEASE])

    def start(self) -> None:
        """Show that this process lives from now on, whatever its other threads wait for."""
        self._thread.start()

    def _live(self) -> None:
        while not self._ended.wait(BEAT_SECONDS) and not self.lost:
            try:
                self.beat()
            except OSError as error:  # a server that is away: it is tried again
                _log.warning("the lease could not be renewed: %s", error)

    def _wait_for_silence(self) -> None:
        seen = self._store.get(LEASE)
        began = self._clock()
        while seen is not None and self._clock() - began < SILENCE_SECONDS:
            self._sleep(1.0)
            now = self._store.get(LEASE)
            if now is not None and now != seen:
                raise self._taken(now)
            seen = now

    def _begin(self, number: int, after: int) -> None:
        term = Term(number, self._token, after)
        if not self._store.create(term.object_name, term.to_bytes()):
            raise self._taken(self._store.get(LEASE))
        self._term = term

    def _confirm(self, asked: float) -> None:
        """Look whether a newer term has begun, or another driver holds this one; `asked` is when this was begun."""
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

"""One driver a sweep in a store: a term that it holds, and an object that it writes again and again while it lives.

A store has no locks. Who finds the object watches it: if it changes, its driver is alive; if it has not changed for
`SILENCE_SECONDS`, its driver is taken for gone, and a new term begins (`sweeper.storage.terms`). Clocks of different
machines are never compared.

A driver may only have been paused. So it acts on what it put into the journal while its own last sign of life is
younger than `VALID_SECONDS`, or after it has looked whether a newer term has begun. One that has lost its term stops.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.storage.object_names import LEASE
from sweeper.storage.terms import TERMS, Term, count_of, settled, term_names
from trainables.files.stores.object_store import Store, patiently

BEAT_SECONDS = 5.0

SILENCE_SECONDS = 20.0
"""Four beats: one may be late by a store's slow answer, and its client tries an unanswered request again for 6 s."""

VALID_SECONDS = SILENCE_SECONDS - BEAT_SECONDS
"""So long after its last sign of life a driver knows that nobody can have taken the sweep over."""

LONG_SILENCE_SECONDS = 120.0
"""A copy of the object that is older than this is a dead driver's; clocks of machines differ by less."""

_log = logging.getLogger("sweeper.storage")


class LeaseLostError(SweeperError):
    """Another driver has taken the sweep over; this one may not write any more."""


def holder_of_copy(path: Path) -> dict[str, Any] | None:
    """Return who drives a sweep in a store (`host`, `pid`), from a copy of its lease; `None` if no process does."""
    try:
        content = path.read_bytes()
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    return _fields(content) if age < LONG_SILENCE_SECONDS else None


def stored_holder(store: Store) -> dict[str, Any] | None:
    """Return who drives the sweep in `store` (`host`, `pid`); `None` if no process does."""
    entry, content = store.entries(recursive=False).get(LEASE), store.get(LEASE)
    if entry is None or content is None or time.time() - entry.written / 1e9 >= LONG_SILENCE_SECONDS:
        return None
    return _fields(content)


def read_terms(store: Store) -> list[Term]:
    """Return the terms of the sweep in `store`. Raises StoreError; SweeperError when one is damaged."""
    names = term_names(store.entries(TERMS, recursive=False))
    found = store.get_all(names)
    return [Term.from_bytes(name, content) for name in names if (content := found[name]) is not None]


def _since_boot() -> float:
    """Return seconds that continue to count while this machine sleeps, where its system counts them."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class StoreLease:
    """The right to drive one sweep in a store."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        clock: Callable[[], float] = _since_boot,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to take the sweep `name`, which is in `store`."""
        self._store, self._name, self._clock, self._sleep = store, name, clock, sleep
        self._token = secrets.token_hex(8)
        self._term: Term | None = None
        self._beats = 0
        self._confirmed = 0.0
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="lease", daemon=True)

    @property
    def term(self) -> Term:
        """The term that this driver holds, or held."""
        assert self._term is not None, "the lease was not taken"
        return self._term

    @property
    def held(self) -> bool:
        """Whether the lease was taken."""
        return self._term is not None

    @property
    def lost(self) -> bool:
        """Whether another driver is known to have taken the sweep over."""
        return self._lost is not None

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

    def start(self) -> None:
        """Show that this driver lives from now on, whatever its other threads wait for."""
        self._thread.start()

    def begin_again(self, after: int) -> None:
        """Begin another term, before which no more than `after` records count: where damaged ones are discarded."""
        self.require()
        self._begin(self.term.number + 1, after)

    def beat(self) -> None:
        """Show that the driver lives, and see whether the sweep is still its own. Raises StoreError."""
        began, self._beats = self._clock(), self._beats + 1
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "token": self._token, "beats": self._beats}
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
        if self._lost is not None:
            raise LeaseLostError(
                f"{self._lost} has taken the sweep {self._name!r} over: this driver's lease expired, so it stops",
                f"what it measured since then is not used; see `sweeper status {self._name} --watch`",
            )

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
            named = {"pid", "host"} <= other.keys()
            self._lost = f"process {other['pid']} on {other['host']}" if named else "another driver"
        else:
            self._confirmed = max(self._confirmed, asked)

    def _live(self) -> None:
        while not self._ended.wait(BEAT_SECONDS) and not self.lost:
            try:
                self.beat()
            except OSError as error:
                _log.warning("the lease could not be renewed: %s", error)

    def _taken(self, holder: bytes | None) -> SweeperError:
        fields = _fields(holder or b"")
        return SweeperError(
            f"the sweep {self._name!r} is already being driven by process {fields.get('pid', '?')} on "
            f"{fields.get('host', '?')}",
            f"wait for it, or stop it with `sweeper stop {self._store.uri}`",
        )


def _fields(content: bytes) -> dict[str, Any]:
    """Return what a lease says, nothing where it is none: anybody may have written it."""
    try:
        fields = json.loads(content)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}

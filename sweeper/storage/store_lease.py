"""Terms: who may write a sweep's journal in a store, and from which record on.

A store has no locks, and a driver that was paused for a minute wakes up and writes. So each driver has a term: a
prefix of its own for its records, and an object that is made once, `terms/00002.json`, which says whose the prefix is
and how many records of the terms before it count. What an earlier driver still writes lies beyond that number: it is
set aside where it is, and nobody reads it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.storage.store_objects import LEASE
from trainables.files.stores.object_store import Store, patiently

TERMS, JOURNAL = "terms", "journal"

UNORDERED = 64
"""Records that release 0.1 put at the same time, each an object: gaps of its dead drivers reach no further back."""

_TERM = re.compile(rf"{TERMS}/(\d{{5}})\.json")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_SINGLE = re.compile(rf"{JOURNAL}/(\d{{10}})-[a-z]+(-c\d+)?(-e\d+)?\.json")
_GROUP = re.compile(rf"{JOURNAL}/(\d{{5}}-[0-9a-f]{{16}})/(\d{{10}})-(\d{{10}})\.records")


@dataclass(frozen=True)
class Term:
    """One driver's right to write the journal.

    Attributes:
        number: counted from 1; a higher one ends all lower ones.
        token: tells the drivers apart that want the same number.
        after: how many records count that were written before it.
    """

    number: int
    token: str
    after: int

    @property
    def object_name(self) -> str:
        """The object that stores it."""
        return f"{TERMS}/{self.number:05d}.json"

    def group_name(self, first: int, last: int) -> str:
        """Return the object of the records `first` to `last`, put under this term."""
        return f"{JOURNAL}/{self.number:05d}-{self.token}/{first:010d}-{last:010d}.records"

    def to_bytes(self) -> bytes:
        """Return the object's content."""
        return json.dumps({"term": self.number, "token": self.token, "after": self.after}).encode()

    @staticmethod
    def from_bytes(name: str, content: bytes) -> Term:
        """Read the object `name`. Raises SweeperError when it is none."""
        try:
            fields = json.loads(content)
            term = Term(int(fields["term"]), str(fields["token"]), int(fields["after"]))
            if term.object_name != name or not _TOKEN.fullmatch(term.token) or term.after < 0:
                raise ValueError("its fields do not fit its name")
        except (ValueError, KeyError, TypeError) as error:
            raise SweeperError(
                f"the object {name} of the sweep's store is damaged: {error}",
                "restore it from a backup: it says which journal records count",
            ) from error
        return term


@dataclass(frozen=True)
class Part:
    """Journal records that count and share one object.

    Attributes:
        name: of the object.
        begins: the number of the object's first record.
        first: the first record of the object that counts.
        last: the last one.
    """

    name: str
    begins: int
    first: int
    last: int


def term_names(names: Iterable[str]) -> list[str]:
    """Return those of a store's objects that are terms, in their order."""
    return sorted(name for name in names if _TERM.fullmatch(name))


def settled(terms: Sequence[Term], names: Iterable[str]) -> list[Part]:
    """Return the parts of the journal that count, in order, given all terms and all of a store's objects.

    Records that are missing between others leave a gap for the reader to complain about.
    """
    ordered = sorted(terms, key=lambda term: term.number)
    groups = _groups(names)
    parts: list[Part] = []
    for place, prefix in enumerate(["", *(f"{term.number:05d}-{term.token}" for term in ordered)]):
        # A later term may begin further back than the one before it: where damaged records were discarded.
        limit = min((term.after for term in ordered[place:]), default=math.inf)
        expected = ordered[place - 1].after if place else 0
        found = groups.get(prefix, [])
        if not place and not ordered:
            found = _without_unsettled(found)
        for begins, last, name in sorted(found, key=lambda group: (group[0], -group[1])):
            if last < expected or begins >= limit:
                continue
            ends = last if limit == math.inf else min(last, int(limit) - 1)
            parts.append(Part(name, begins, max(begins, expected), ends))
            expected = ends + 1
    return parts


def count_of(terms: Sequence[Term], parts: Sequence[Part]) -> int:
    """Return how many records count."""
    begun = max(terms, key=lambda term: term.number).after if terms else 0
    return max(begun, parts[-1].last + 1 if parts else 0)


def _groups(names: Iterable[str]) -> Mapping[str, list[tuple[int, int, str]]]:
    """Return the journal's objects by the prefix of their term; those of release 0.1 have none."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for name in names:
        if match := _GROUP.fullmatch(name):
            found.setdefault(match[1], []).append((int(match[2]), int(match[3]), name))
        elif match := _SINGLE.fullmatch(name):
            found.setdefault("", []).append((int(match[1]), int(match[1]), name))
    return found


def _without_unsettled(found: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Leave out what a driver of release 0.1 was putting when it died: those after a gap, if they are few.

    Where they are many, a record was lost otherwise.
    """
    ordered = sorted(found)
    gap = next((place for place, (begins, *_) in enumerate(ordered) if begins != place), len(ordered))
    beyond = ordered[-1][0] - gap if ordered else 0
    return ordered if beyond >= UNORDERED else ordered[:gap]


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

"""A journal whose records are in a store before any decision based on them takes effect, and who may write it.

Records that settle together are one object below the prefix of the driver's term, whole or absent; from time to time
many of them become one. In the copy of whoever drives or reads, an object is a segment of the journal.

A store has no locks, and a driver that was paused for a minute wakes up and writes. So each driver has a term: a
prefix of its own for its records, and an object that is made once, `terms/00002.json`, which says whose the prefix is
and how many records of the terms before it count. What an earlier driver still writes lies beyond that number: it is
set aside where it is, and nobody reads it.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.core.errors import SweeperError
from sweeper.journal import segments
from sweeper.journal.journal import Journal
from sweeper.journal.records import Body, Record
from sweeper.journal.segments import joined, piece_of, segment_name
from trainables.files.atomic import write_bytes
from trainables.files.regular import read_bytes
from trainables.files.stores.base import Entry, StoreError
from trainables.files.stores.object_store import PATIENCE_SECONDS, Store, patiently

if TYPE_CHECKING:
    from sweeper.storage.lease import StoreLease

TERMS, JOURNAL = "terms", "journal"

_TERM = re.compile(rf"{TERMS}/(\d{{5}})\.json")
_TOKEN = re.compile(r"[0-9a-f]{16}")
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
    for place, term in enumerate(ordered):
        # A later term may begin further back than the one before it: where damaged records were discarded.
        limit = min((later.after for later in ordered[place + 1 :]), default=math.inf)
        expected = term.after
        found = groups.get(f"{term.number:05d}-{term.token}", [])
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
    """Return the journal's objects by the prefix of their term."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for name in names:
        if match := _GROUP.fullmatch(name):
            found.setdefault(match[1], []).append((int(match[2]), int(match[3]), name))
    return found


def read_terms(store: Store) -> list[Term]:
    """Return the terms of the sweep in `store`. Raises StoreError; SweeperError when one is damaged."""
    names = term_names(store.entries(TERMS, recursive=False))
    found = store.get_all(names)
    return [Term.from_bytes(name, content) for name in names if (content := found[name]) is not None]


#: Objects that are fetched before their records are written here: some MB.
AT_ONCE = 256

#: The file beside the copied records that says of which objects they are.
INDEX = ".fetched"


class StoredJournal(Journal):
    """The journal of a sweep in a store; the files in `folder` are this machine's copy."""

    def __init__(self, folder: Path, store: Store, lease: StoreLease) -> None:
        """Continue after the last record in `folder`, which `fetch_journal` has made equal to the store's."""
        super().__init__(folder, joins_earlier=False)
        self._store, self._lease = store, lease
        self._waiting: list[Record] = []
        self._unsealed: list[Record] = []
        self._groups: list[str] = []
        self._sealing = threading.Lock()

    def append(self, body: Body) -> Record:
        """Write one record and return it; it counts once `settle` was called."""
        record = super().append(body)
        self._waiting.append(record)
        return record

    def settle(self) -> None:
        """Put the records since the last time into the store.

        Raises SweeperError when the store stays out of reach, or when another driver has taken the sweep over; they
        are then as if they had never been.
        """
        super().settle()
        if not self._waiting:
            return
        group = self._waiting
        name = self._lease.term.group_name(group[0].sequence, group[-1].sequence)
        try:
            self._lease.require()
            patiently(lambda: self._store.put(name, joined([record.to_bytes() for record in group])))
            # A pause may have come between: then nobody may act on what was put.
            self._lease.require()
        except StoreError as error:
            raise SweeperError(
                f"the journal could not be written for {PATIENCE_SECONDS:.0f} s: {error.message}",
                f"{error.remedy}; then continue with `sweeper resume {self._store.uri}`: every result that "
                "was used is kept",
            ) from error
        self._waiting = []
        with self._sealing:
            self._unsealed += group
            self._groups.append(name)

    def seal(self) -> None:
        """Make one object of many, once there are enough; another thread than the driver's may do it.

        Raises StoreError; then all is as before.
        """
        with self._sealing:
            names, records = [*self._groups], [*self._unsealed]
        if len(records) < segments.SEALED:
            return
        if len(names) > 1:
            self._lease.require()
            whole = self._lease.term.group_name(records[0].sequence, records[-1].sequence)
            self._store.put(whole, joined([record.to_bytes() for record in records]))
        with self._sealing:
            del self._unsealed[: len(records)], self._groups[: len(names)]
        if len(names) > 1:
            self._store.delete(names)


def fetch_journal(store: Store, folder: Path, found: Mapping[str, Entry], terms: Sequence[Term]) -> bool:
    """Make the records in `folder` equal to those in the store that count.

    Args:
        store: of the sweep.
        folder: of this machine's copy.
        found: the objects in the store.
        terms: all of them, read after `found` was listed.

    Returns whether it is done; an object was replaced meanwhile if not, and the store must be listed again.

    Raises StoreError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known, present = _read_index(folder / INDEX), {*os.listdir(folder)}
    index: dict[str, tuple[list[int], str]] = {}
    stale: list[tuple[Part, list[int]]] = []
    for part in settled(terms, found):
        key = [found[part.name].size, found[part.name].written, part.first, part.last]
        had = known.get(part.name)
        if had is not None and had[0] == key and had[1] in present:
            index[part.name] = had
        else:
            stale.append((part, key))
    for start in range(0, len(stale), AT_ONCE):
        batch = stale[start : start + AT_ONCE]
        contents = store.get_all(part.name for part, _ in batch)
        for part, key in batch:
            content = contents[part.name]
            if content is None:
                return False
            index[part.name] = key, _unpack(folder, part, content)
    for name in present.difference(name for _, name in index.values()):
        if piece_of(name) is not None:
            (folder / name).unlink(missing_ok=True)
    write_bytes(folder / INDEX, json.dumps(index).encode(), durable=False)
    return True


def _unpack(folder: Path, part: Part, content: bytes) -> str:
    """Write the records of an object that count as one file, a segment; return its name."""
    lines = content.split(b"\n")
    first, last = (2 * (sequence - part.begins) for sequence in (part.first, part.last + 1))
    name = segment_name(part.first, part.last)
    write_bytes(folder / name, b"\n".join(lines[first:last]) + b"\n", durable=False)
    return name


def _read_index(path: Path) -> dict[str, tuple[list[int], str]]:
    try:
        return {name: (key, file) for name, (key, file) in json.loads(read_bytes(path)).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        # It is a convenience: without it everything is fetched again.
        return {}

"""A journal in a store, whose records are stored before any decision based on them takes effect.

Records that settle together form one object below the prefix of the driver's term. The object is complete or absent.
From time to time many objects are merged into one. In a local copy, each object becomes a segment of the journal.

A store has no locks, and a driver that was paused for a minute can wake up and write. Therefore each driver has a term:
a prefix of its own for records, and an object that is created once, `terms/00002.json`. The object has the owner of the
prefix and the number of earlier records that count. Records that an earlier driver still writes lie beyond that number
and are never read.
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
from trainables.files.atomic import read_bytes, write_bytes
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
        number: Number of the term, from 1; a higher term ends all lower ones.
        token: Random token that distinguishes two drivers that try to take the same number.
        after: Number of earlier records that count.
    """

    number: int
    token: str
    after: int

    @property
    def object_name(self) -> str:
        """Name of the object that stores the term."""
        return f"{TERMS}/{self.number:05d}.json"

    def group_name(self, first: int, last: int) -> str:
        """Return the name of the object with the records `first` to `last` of this term."""
        return f"{JOURNAL}/{self.number:05d}-{self.token}/{first:010d}-{last:010d}.records"

    def to_bytes(self) -> bytes:
        """Return the content of the term's object."""
        return json.dumps({"term": self.number, "token": self.token, "after": self.after}).encode()

    @staticmethod
    def from_bytes(name: str, content: bytes) -> Term:
        """Parse the object `name`. Raises SweeperError if it is not a valid term."""
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
        name: Name of the object.
        begins: Number of the object's first record.
        first: Number of its first record that counts.
        last: Number of its last record that counts.
    """

    name: str
    begins: int
    first: int
    last: int


def term_names(names: Iterable[str]) -> list[str]:
    """Return the names of a store's terms, in order."""
    return sorted(name for name in names if _TERM.fullmatch(name))


def settled(terms: Sequence[Term], names: Iterable[str]) -> list[Part]:
    """Return the parts of the journal that count, in order.

    Missing records leave a gap, which the journal's reader reports.

    Args:
        terms: All terms of the sweep.
        names: All objects of the store.
    """
    ordered = sorted(terms, key=lambda term: term.number)
    groups = _groups(names)
    parts: list[Part] = []
    for place, term in enumerate(ordered):
        # Every later term limits this one, not only the next: a term that discards damaged records begins further back.
        limit = min((later.after for later in ordered[place + 1 :]), default=math.inf)
        expected = term.after
        own = groups.get(f"{term.number:05d}-{term.token}", [])
        # Longest first: a merged object precedes the objects that it replaces, which are deleted a moment later.
        for begins, last, name in sorted(own, key=lambda group: (group[0], -group[1])):
            if last < expected or begins >= limit:
                continue
            ends = last if limit == math.inf else min(last, int(limit) - 1)
            parts.append(Part(name, begins, max(begins, expected), ends))
            expected = ends + 1
    return parts


def count_of(terms: Sequence[Term], parts: Sequence[Part]) -> int:
    """Return the number of records that count."""
    begun = max(terms, key=lambda term: term.number).after if terms else 0
    return max(begun, parts[-1].last + 1 if parts else 0)


def _groups(names: Iterable[str]) -> Mapping[str, list[tuple[int, int, str]]]:
    """Return the journal's objects by term prefix: prefix → (first record, last record, object name)."""
    groups: dict[str, list[tuple[int, int, str]]] = {}
    for name in names:
        if match := _GROUP.fullmatch(name):
            groups.setdefault(match[1], []).append((int(match[2]), int(match[3]), name))
    return groups


def read_terms(store: Store) -> list[Term]:
    """Read the terms of the sweep in `store`. Raises StoreError; SweeperError if a term is damaged."""
    names = term_names(store.entries(TERMS, recursive=False))
    contents = store.get_all(names)
    return [Term.from_bytes(name, content) for name in names if (content := contents[name]) is not None]


#: Objects that are downloaded together; bounds memory to some MB.
AT_ONCE = 256

#: File beside the copied records that maps objects to segments.
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
        """Write one record and return it; it counts only after `settle`."""
        record = super().append(body)
        self._waiting.append(record)
        return record

    def settle(self) -> None:
        """Upload the records since the last call.

        Raises SweeperError if the store stays out of reach or another driver has taken the sweep over; the records then
        do not count.
        """
        super().settle()
        if not self._waiting:
            return
        group = self._waiting
        name = self._lease.term.group_name(group[0].sequence, group[-1].sequence)
        try:
            self._lease.require()
            patiently(lambda: self._store.put(name, joined([record.to_bytes() for record in group])))
            # This process may have been paused during the upload: the records may then lie beyond a newer term.
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
        """Merge many objects into one, once there are enough; the caller can be another thread than the driver's.

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


def fetch_journal(store: Store, folder: Path, entries: Mapping[str, Entry], terms: Sequence[Term]) -> bool:
    """Make the records in `folder` equal to those in the store that count.

    Args:
        store: Store of the sweep.
        folder: Journal folder of the local copy.
        entries: Objects in the store: name → entry.
        terms: All terms, read after `entries` was listed.

    Returns whether it succeeded. If not, an object was replaced meanwhile, and the store must be listed again.

    Raises StoreError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known, present = _read_index(folder / INDEX), {*os.listdir(folder)}
    index: dict[str, tuple[list[int], str]] = {}
    stale: list[tuple[Part, list[int]]] = []
    for part in settled(terms, entries):
        key = [entries[part.name].size, entries[part.name].written, part.first, part.last]
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
            if content is None:  # merged into another object since the listing
                return False
            index[part.name] = key, _unpack(folder, part, content)
    for name in present.difference(name for _, name in index.values()):
        if piece_of(name) is not None:
            (folder / name).unlink(missing_ok=True)
    write_bytes(folder / INDEX, json.dumps(index).encode(), durable=False)
    return True


def _unpack(folder: Path, part: Part, content: bytes) -> str:
    """Write the records of an object that count into one segment file; return its name."""
    # Each record takes two lines in a segment, its checksum and its body, hence the factor 2.
    lines = content.split(b"\n")
    first, last = (2 * (sequence - part.begins) for sequence in (part.first, part.last + 1))
    name = segment_name(part.first, part.last)
    write_bytes(folder / name, b"\n".join(lines[first:last]) + b"\n", durable=False)
    return name


def _read_index(path: Path) -> dict[str, tuple[list[int], str]]:
    try:
        return {name: (key, file) for name, (key, file) in json.loads(read_bytes(path)).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        # The index only saves downloads: without an index everything is fetched again.
        return {}

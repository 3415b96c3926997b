"""A journal whose records are in a store before any decision based on them takes effect.

Records that settle together are one object below the prefix of the driver's term, whole or absent; from time to time
many of them become one. In the copy of whoever drives or reads, an object is a segment of the journal.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.journal import segments
from sweeper.journal.journal import Journal
from sweeper.journal.records import Body, Record
from sweeper.journal.segments import joined, piece_of, segment_name
from sweeper.storage.store_lease import Part, StoreLease, Term, settled
from trainables.files.atomic import write_bytes
from trainables.files.stores.base import Entry, StoreError
from trainables.files.stores.object_store import PATIENCE_SECONDS, Store, patiently

AT_ONCE = 256
"""Objects that are fetched before their records are written here: some MB."""

INDEX = ".fetched"
"""The file beside the copied records that says of which objects they are."""


class StoredJournal(Journal):
    """The journal of a sweep in a store; the files in `folder` are this machine's copy."""

    def __init__(
        self, folder: Path, store: Store, lease: StoreLease, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Continue after the last record in `folder`, which `fetch_journal` has made equal to the store's."""
        super().__init__(folder, joins_earlier=False)
        self._store, self._lease, self._sleep = store, lease, sleep
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
            patiently(lambda: self._store.put(name, joined([record.to_bytes() for record in group])), sleep=self._sleep)
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
        return {name: (key, file) for name, (key, file) in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        # It is a convenience: without it everything is fetched again.
        return {}

"""A journal whose records are in a store before any decision based on them takes effect.

One record is one object, under the name of its file. Records that are settled together are put at once, so that a
report costs the driver one round trip however many records it makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.journal.journal import Journal
from sweeper.journal.records import Body, Record
from trainables.worker.object_store import Store, StoreError

TOGETHER = 64
"""Records put at the same time, in no order: a driver that dies meanwhile leaves gaps no further back than this."""

PATIENCE_SECONDS = 120.0
"""Seconds that a store may be out of reach before the sweep ends: trials wait, nothing is lost."""

JOURNAL = "journal"


class StoredJournal(Journal):
    """The journal of a sweep that lies in a store; the files in `folder` are this machine's copy."""

    def __init__(self, folder: Path, store: Store, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Continue after the last record in `folder`, which `places.fetch` has made equal to the store's."""
        super().__init__(folder)
        self._store, self._sleep = store, sleep
        self._waiting: list[Record] = []

    def append(self, body: Body) -> Record:
        """Write one record and return it; it counts once `settle` was called."""
        record = super().append(body)
        self._waiting.append(record)
        return record

    def settle(self) -> None:
        """Put the records since the last time into the store.

        Raises SweeperError when the store stays out of reach; they are then as if they had never been.
        """
        super().settle()
        while self._waiting:
            group = self._waiting[:TOGETHER]
            self._put({f"{JOURNAL}/{record.file_name}": record.to_bytes() for record in group})
            del self._waiting[: len(group)]

    def _put(self, contents: Mapping[str, bytes]) -> None:
        began = time.monotonic()
        while True:
            try:
                self._store.put_all(dict(contents))
                return
            except StoreError as error:
                if time.monotonic() - began > PATIENCE_SECONDS:
                    raise SweeperError(
                        f"the journal could not be written for {PATIENCE_SECONDS:.0f} s: {error.message}",
                        f"{error.remedy}; then continue with `sweeper resume {self._store.uri}`: every result that "
                        "was used is kept",
                    ) from error
                self._sleep(2.0)


def remove_unsettled(store: Store) -> list[str]:
    """Remove records that a driver was putting when it died, and which therefore never counted; return their names.

    They are those after a missing one, where at most as many follow as are put at the same time. More than that, and
    a record was lost otherwise: that is left for the reader to complain about.
    """
    names = sorted(name for name in store.entries(JOURNAL, recursive=False) if name.endswith(".json"))
    sequences = [int(Path(name).name[:10]) for name in names]
    gap = next((place for place, sequence in enumerate(sequences) if sequence != place), len(names))
    unsettled = names[gap:]
    if not unsettled or sequences[-1] - gap >= TOGETHER:
        return []
    store.delete(unsettled)
    return unsettled

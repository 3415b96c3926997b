"""A journal that another process writes, read as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.journal.journal import record_names
from sweeper.journal.records import Record


class JournalTail:
    """The records of a journal as they arrive; waits for a missing one."""

    def __init__(self, folder: Path) -> None:
        """Begin at the first record of the journal in `folder`, which need not exist yet."""
        self._folder, self._next = folder, 0

    def read(self) -> Iterator[Record]:
        """Yield the records that have come in since the last call. Raises SweeperError on a damaged one."""
        newest = f"{self._next:010d}"
        for name in sorted(name for name in record_names(self._folder) if name >= newest):
            if int(name[:10]) != self._next:
                # A folder that is being written to may list a later file without an earlier one.
                return
            try:
                record = Record.from_bytes((self._folder / name).read_bytes())
            except (ValueError, KeyError, TypeError) as error:
                raise SweeperError(f"the journal record {self._folder / name} is damaged: {error}") from error
            self._next += 1
            yield record

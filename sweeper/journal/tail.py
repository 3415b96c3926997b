"""A journal that another process writes, read as it grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.journal.records import Record
from sweeper.journal.segments import GapError, contents


class JournalTail:
    """The records of a journal as they arrive; waits for a missing one."""

    def __init__(self, folder: Path) -> None:
        """Begin at the first record of the journal in `folder`, which need not exist yet."""
        self._folder, self._next = folder, 0

    def read(self) -> Iterator[Record]:
        """Yield the records that have come in since the last call. Raises SweeperError on a damaged one."""
        try:
            for content in contents(self._folder, self._next - 1):
                try:
                    record = Record.from_bytes(content.data)
                except (ValueError, KeyError, TypeError) as error:
                    raise SweeperError(
                        f"the journal record {self._folder / content.file} is damaged: {error}"
                    ) from error
                self._next += 1
                yield record
        except GapError:
            # A folder that is being written to may list a later file without an earlier one.
            return

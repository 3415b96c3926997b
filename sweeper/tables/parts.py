"""Parts of the tables whose rows travel through the journal, named by the range of records they hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sweeper.core.schemas import record_batch
from trainables.worker.trial_tables import write_parquet

CELLS_A_PART = 500_000
"""A rebuilt part ends after so many values, which bounds the memory that rebuilding needs to some 50 MB."""

_NAME = re.compile(r"(\d{10})-(\d{10})\.parquet")


def part_name(first: int, last: int) -> str:
    """Return the name of the part that holds the rows of the records `first` … `last`."""
    return f"{first:010d}-{last:010d}.parquet"


class PartBuffer:
    """Rows of one table that wait to become a part."""

    def __init__(self, table: str, schema: pa.Schema) -> None:
        self.table, self.schema = table, schema
        self._rows: list[Mapping[str, Any]] = []
        self._first = self._last = -1

    @property
    def full(self) -> bool:
        """Whether the rows should become a part now, for their number."""
        return len(self._rows) * len(self.schema) >= CELLS_A_PART

    def add(self, sequence: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take in the rows of record `sequence`."""
        if not self._rows:
            self._first = sequence
        self._last = sequence
        self._rows += rows

    def write(self, generation: Path, name: str | None = None) -> None:
        """Write the rows as one part below `generation`, if there are any, and forget them once they are there.

        Raises ValueError when a row does not fit the schema, OSError when the part cannot be written.
        """
        if not self._rows:
            return
        batch = record_batch(self.table, self.schema, self._rows)
        write_parquet(generation / self.table / (name or part_name(self._first, self._last)), self.schema, [batch])
        self._rows = []


class RebuiltParts:
    """Writes a table's rows again, cut into the parts that readers know already, and new ones after them."""

    def __init__(self, buffer: PartBuffer, before: Path, after: Path) -> None:
        """Cut as in the generation `before`; write into the folder `after`."""
        self._buffer, self._after = buffer, after
        matches = (_NAME.fullmatch(part.name) for part in sorted((before / buffer.table).iterdir()))
        self._known = [(int(match[1]), int(match[2])) for match in matches if match]
        self._known.reverse()
        self._open: tuple[int, int] | None = None
        self._newest = -1

    def add(self, sequence: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take in the rows of record `sequence`; records come in order."""
        while self._known and self._known[-1][1] < sequence:
            self._leave(self._known.pop())
        here = self._known[-1] if self._known and self._known[-1][0] <= sequence else None
        if here != self._open or (here is None and self._buffer.full):
            self._write()
            self._open = here
        self._buffer.add(sequence, rows)
        self._newest = sequence

    def finish(self) -> None:
        """Write what is left; the journal has ended."""
        if self._open and self._open[1] > self._newest:
            # The journal lost its last records since this part was named: their numbers will be given again.
            self._open = self._open[0], self._newest
        self._write()

    def _leave(self, part: tuple[int, int]) -> None:
        if part == self._open:
            self._write()
            self._open = None

    def _write(self) -> None:
        self._buffer.write(self._after, part_name(*self._open) if self._open else None)

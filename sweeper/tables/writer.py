"""The Parquet projection of the journal: `<sweep>/tables/<table>/**/*.parquet`, readable at every moment.

Rows become parts named after their journal records. A part is written once, renamed into place and never changed. So no
reader meets a partial file, a repeated row, or metadata that no longer fit the data. Only the single file of `trials`
is replaced as a whole. Large tables come from the trials' processes: each file waits in `incoming` until its evaluation
is journaled, and is then renamed into place.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa

from sweeper.core.errors import writing_to
from sweeper.core.ids import ReplicateSeeds, SweepPaths
from sweeper.core.labels import plural
from sweeper.core.schemas import record_batch
from sweeper.journal.records import Record
from sweeper.journal.state import ENDED, SweepState
from sweeper.tables.file_list import EMPTY_PART, TRIALS_FILE, FileList
from sweeper.tables.generations import Generations
from sweeper.tables.large_tables import LargeTables, StoreArrivals, evaluations_in
from sweeper.tables.rows import SCALAR_TABLES, JournalRows, TrialsTable
from trainables.registry import Configuration
from trainables.worker.trial_tables import write_parquet

#: Largest number of values of a rebuilt part, which bounds the memory for rebuilding to some 50 MB.
CELLS_A_PART = 500_000

_NAME = re.compile(r"(\d{10})-(\d{10})\.parquet")


def part_name(first: int, last: int) -> str:
    """Return the name of the part with the rows of the records `first` … `last`."""
    return f"{first:010d}-{last:010d}.parquet"


class PartBuffer:
    """Rows of one table that are not written yet; `files` lists the parts."""

    def __init__(self, table: str, schema: pa.Schema, files: FileList) -> None:
        self.table, self.schema, self._files = table, schema, files
        self._rows: list[Mapping[str, object]] = []
        self._first = self._last = -1

    @property
    def full(self) -> bool:
        """Whether there are enough rows for a part."""
        return len(self._rows) * len(self.schema) >= CELLS_A_PART

    def add(self, sequence: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Add the rows of record `sequence`."""
        if not self._rows:
            self._first = sequence
        self._last = sequence
        self._rows += rows

    def write(self, generation: Path, name: str | None = None) -> None:
        """Write the rows, if any, as one part below `generation`, and drop them once written.

        Raises ValueError if a row does not fit the schema, OSError if the part cannot be written.
        """
        if not self._rows:
            return
        batch = record_batch(self.table, self.schema, self._rows)
        name = name or part_name(self._first, self._last)
        write_parquet(generation / self.table / name, self.schema, [batch])
        self._files.add(self.table, name)
        self._rows = []  # only now, so that the next flush writes them after an error


class RebuiltParts:
    """Writes a table's rows again, split into the parts that readers know; later rows form new parts."""

    def __init__(self, buffer: PartBuffer, before: Path, after: Path) -> None:
        """Split as in the generation `before`; write to the folder `after`."""
        self._buffer, self._after = buffer, after
        matches = (_NAME.fullmatch(part.name) for part in sorted((before / buffer.table).iterdir()))
        self._known = [(int(match[1]), int(match[2])) for match in matches if match]
        self._known.reverse()  # the first part last, so that `pop` is cheap
        self._open: tuple[int, int] | None = None
        self._newest = -1

    def add(self, sequence: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Add the rows of record `sequence`; records come in order."""
        while self._known and self._known[-1][1] < sequence:
            if self._known.pop() == self._open:
                self._write()
                self._open = None
        known = self._known[-1] if self._known and self._known[-1][0] <= sequence else None
        if known != self._open or (known is None and self._buffer.full):
            self._write()
            self._open = known
        self._buffer.add(sequence, rows)
        self._newest = sequence

    def finish(self) -> None:
        """Write the remaining rows at the journal's end."""
        if self._open and self._open[1] > self._newest:
            # Records of this part were quarantined; their numbers will be used again for other rows.
            self._open = self._open[0], self._newest
        self._write()

    def _write(self) -> None:
        self._buffer.write(self._after, part_name(*self._open) if self._open else None)


#: Shortest time between flushes in seconds. A flush of the quickstart takes 20 ms, about 1 % of this time.
SHORTEST_INTERVAL = 2.0

#: Largest share of time for flushes: after a slow one, the next waits twenty times as long.
SHARE_OF_TIME = 0.05

#: The interval grows with the sweep's age, so the number of parts grows with the logarithm of the age: 140 per
#: doubling.
GROWTH = 1 / 200


class ParquetSink:
    """Writes a sweep's tables. There is one in the driver; trials write only below `incoming`.

    Args:
        paths: paths of the sweep; the caller holds its lease.
        schemas: schema of every table, see `sweeper.core.schemas.table_schemas`.
        configurations: all configurations by index; `None` if a searcher chooses them, because the journal has these.
        seeds: seeds of the replicates.
        clock: time in seconds, for the interval between flushes.
        arrivals: downloads the trials' tables if they upload them to a store.

    Opening creates the tables, without rows, if there are none, and removes unfinished files of an earlier driver. To
    resume an existing sweep, call `rebuild`.

    Raises:
        SweeperError: the folder cannot be written to.
    """

    def __init__(
        self,
        paths: SweepPaths,
        schemas: Mapping[str, pa.Schema],
        configurations: Sequence[Configuration | None],
        seeds: ReplicateSeeds,
        *,
        clock: Callable[[], float] = time.monotonic,
        arrivals: StoreArrivals | None = None,
    ) -> None:
        self._paths, self._schemas, self._clock, self._arrivals = paths, schemas, clock, arrivals
        self._trials = TrialsTable(paths.name, schemas["trials"], configurations, seeds)
        self._configurations = len(configurations)
        self._generations = Generations(paths)
        self._begin()
        self._last_flush, self._interval = clock(), SHORTEST_INTERVAL
        with self._writing():
            self._generations.clean()
            if self._generations.current is None:
                generation = self._generations.create()
                self._write_fixed_parts(generation)
                self._generations.publish(generation)

    @property
    def incoming(self) -> Path:
        """Folder below which trials write their tables, see `trainables.worker.trial_tables`."""
        return self._generations.incoming

    @property
    def config_hashes(self) -> Sequence[str | None]:
        """Hash of every configuration's values, by index; `None` for one that a searcher has not chosen yet."""
        return self._trials.config_hashes

    @property
    def notes(self) -> list[str]:
        """Sentences for the user about recovered, damaged and missing files."""
        damaged, notes = self._generations.damaged, [*self._generations.recovered]
        if damaged:
            names = ", ".join(f"{path.parent.name} of {path.stem}" for path in damaged)
            notes.append(f"damaged table files were quarantined in {damaged[0].parent.parent}: {names}")
        return [*notes, *self.missing()]

    def missing(self) -> list[str]:
        """Return a sentence for each table without files of some journaled evaluations."""
        return [
            f"missing {table} of {plural(sum(map(evaluations_in, names)), 'evaluation')}, e.g. {names[0]}: trials "
            "wrote these files, and they cannot be rebuilt from the journal; put the files back into "
            f"tables/{table} from a backup, then `sweeper resume {self._paths.in_commands}`, or train these trials "
            "again in a new sweep"
            for table, names in self._large.missing().items()
        ]

    def append(self, record: Record) -> None:
        """Add a journaled record, visible after the next flush. Raises ValueError for an unknown column."""
        self._take(record, self._buffers)
        self._changed = True

    def flush_if_due(self) -> None:
        """Flush if enough time has passed since the last flush."""
        if self._changed and self._clock() - self._last_flush >= self._interval:
            self.flush()

    def flush(self) -> None:
        """Make all added records visible. Raises SweeperError if the folder cannot be written to."""
        began = self._clock()
        with self._writing():
            self._flush()
        self._last_flush = self._clock()
        age = (self._state.updated_at or 0.0) - (self._state.started_at or 0.0)
        self._interval = max(SHORTEST_INTERVAL, (self._last_flush - began) / SHARE_OF_TIME, age * GROWTH)

    def rebuild(self, records: Iterable[Record]) -> None:
        """Rebuild the tables from the whole journal as a new generation, and publish it by one rename.

        Rows come from the records alone. Sound files that trials wrote are carried over if their evaluation is
        journaled; damaged ones are moved to `generations/damaged` with a warning. Parts that readers know keep their
        names and rows.

        Args:
            records: every record of the journal, in order.
        """
        with self._writing():
            before = self._current()
            self._generations.drop_lost_recalibrations()
            generation = self._generations.create()
            self._begin()
            parts = {table: RebuiltParts(buffer, before, generation) for table, buffer in self._buffers.items()}
            for record in records:
                self._take(record, parts)
            for rebuilt in parts.values():
                rebuilt.finish()
            for folder in (before, *self._generations.unproven):
                self._large.carry_over(folder, generation)
            self._large.note_losses(before)
            self._large.publish_kept(only=True)
            self._write_fixed_parts(generation)
            self._generations.publish(generation)
            # Remove old generations only after the swap: until then readers use the old one, and a kill must leave
            # both.
            self._generations.remove_superseded()
            self._large.publish(generation)

    def close(self) -> None:
        """Flush; once every trial has ended, remove files of evaluations that were never journaled."""
        with self._writing():
            self._large.publish(self._current(), everything=True)
        self.flush()  # afterwards, so that the list of files has all of them
        if all(trial.status in ENDED for trial in self._state.trials.values()):
            self._large.clear_incoming()

    def _take(self, record: Record, parts: Mapping[str, PartBuffer] | Mapping[str, RebuiltParts]) -> None:
        self._state.apply(record)
        for table, rows in self._rows.project(record).items():
            parts[table].add(record.sequence, rows)
            if table == "evaluations":
                self._large.expect(rows)

    def _begin(self) -> None:
        self._state = SweepState(self._configurations)
        self._rows = JournalRows()
        self._files = FileList()
        self._buffers = {table: PartBuffer(table, self._schemas[table], self._files) for table in SCALAR_TABLES}
        self._large = LargeTables(self._generations, self._schemas, self._files, self._arrivals)
        self._changed = False

    def _flush(self) -> None:
        generation = self._current()
        # Publish predictions before evaluations, so that a reader who finds a row finds its samples, too.
        self._large.publish(generation)
        for buffer in self._buffers.values():
            buffer.write(generation)
        self._write_trials(generation)
        self._changed = False

    def _write_fixed_parts(self, generation: Path) -> None:
        for table, schema in self._schemas.items():
            if table != "trials":
                write_parquet(generation / table / EMPTY_PART, schema, [])
                self._files.add(table, EMPTY_PART)
        self._write_trials(generation)

    def _write_trials(self, generation: Path) -> None:
        """Write `trials`; always the last file of a flush, since its footer lists the others."""
        self._files.add("trials", TRIALS_FILE.name)
        self._large.list_kept()
        batch = self._trials.batch(self._state)
        batch = batch.replace_schema_metadata(self._files.metadata())
        write_parquet(generation / TRIALS_FILE, batch.schema, [batch])

    def _current(self) -> Path:
        generation = self._generations.current
        if generation is None:
            raise FileNotFoundError(2, "the link to the tables is missing", str(self._paths.tables))
        return generation

    def _writing(self) -> AbstractContextManager[None]:
        return writing_to(
            f"the tables in {self._paths.tables}",
            f"free space or make the folder writable, then run `sweeper resume {self._paths.in_commands}`; "
            "the journal has every result and the tables are rebuilt from it",
        )

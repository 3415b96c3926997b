"""The tables that trials write themselves: published once their evaluation is journaled, carried over on a rebuild.

In a folder that all machines share trials leave them in `incoming`; from a store `StoreArrivals` brings them there.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.core.errors import SweeperError
from sweeper.core.ids import RECALIBRATIONS, TABLES
from sweeper.tables.generations import INCOMING, Generations, carry
from sweeper.tables.rows import FINAL
from trainables.files.atomic import own_temporary_names
from trainables.files.sealed import require_sound
from trainables.files.stores.object_store import Store
from trainables.worker.trial_tables import part_name, write_parquet

#: The tables whose rows never travel through the journal. A sweep may leave one of them without any file.
LARGE_TABLES = ("predictions", "reliability", "spectra", "blocks")

#: Those that trials write at every evaluation: where the journal has one and no file is there, the file was lost.
ALWAYS_WRITTEN = ("predictions", "reliability")

#: So many evaluations are published as the files they came in; a thousand files take pyarrow 1 s to read.
SINGLE_PARTS = 1000

#: From then on this many are merged into one file before they are published.
MERGED_PARTS = 64

#: Files of this size are published as they are; merging stops before it would exceed it, which bounds its memory.
MERGED_BYTES = 32 * 2**20

#: A file that is not there yet (a network file system may show it late) is looked for at so many more flushes.
LOOKS = 3

#: The Parquet metadata key under which a merged file lists the names of the files it was made of.
MERGED_KEY = b"evaluations"


#: The table whose files stay in a store.
KEPT = "predictions"

_FILE = re.compile(rf"tables/{KEPT}/(c\d{{5,}}[A-Za-z0-9_.-]{{0,199}}\.parquet)")
_ONE_EVALUATION = re.compile(r"c\d{5,}-r\d+-e\d{5,}\.parquet")
_TABLE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.parquet")

#: A table, and the name of a file of it.
_Name = tuple[str, str]


def kept_file(name: str) -> str | None:
    """Return the file of an object that is a published file of that table; `None` for any other object."""
    match = _FILE.fullmatch(name)
    return match[1] if match else None


def trial_of(file: str) -> str | None:
    """Return the trial whose evaluation a file holds; `None` where it holds several."""
    return file.partition("-")[0] if _ONE_EVALUATION.fullmatch(file) else None


def is_table_file(table: str, name: str) -> bool:
    """Return whether `name` can be a file of the table `table`: one file name, of a table that sweeps have."""
    return table in (*TABLES, RECALIBRATIONS) and _TABLE_FILE.fullmatch(name) is not None


class StoreArrivals:
    """Trials' tables in a store: small ones are fetched, those of `KEPT` published where they are. Safe from threads.

    No driver ever reads a file of `KEPT`: they are too large to pass through it. A trial puts one below `incoming`;
    once its evaluation is journaled the store gives it its final name, below `tables`; the content stays where it is.
    """

    def __init__(self, store: Store, incoming: Path) -> None:
        """Begin with nothing.

        Args:
            store: of the sweep.
            incoming: the folder, here, into which files are fetched, and of those that the driver itself brings.
        """
        self._store, self._folder = store, incoming
        self._lock, self._working = threading.Lock(), threading.Lock()
        self._published: set[str] = set()
        self._wanted: set[str] = set()
        self._withdrawn: set[str] = set()
        self._lost: set[str] = set()
        self._requested: set[_Name] = set()
        self._fetched: set[_Name] = set()

    def request(self, table: str, name: str) -> None:
        """Request a file of a table that a trial has uploaded. Raises SweeperError when it is no table's file."""
        if not is_table_file(table, name):
            raise SweeperError(
                f"the journal names a file that is not a table file: {table}/{name}",
                "nothing was fetched; a record that says so was not written by a sweep",
            )
        with self._lock:
            self._requested.add((table, name))

    def pending(self, table: str, name: str) -> bool:
        """Return whether a requested file has not arrived yet."""
        return (table, name) in self._requested

    def forget(self, table: str, name: str) -> None:
        """Cancel a request for a file that is here already."""
        with self._lock:
            self._requested.discard((table, name))

    def fetch(self) -> None:
        """Fetch what was requested. Raises StoreError."""
        with self._lock:
            wanted = {*self._requested}
        self._store.download_all({_waiting(*each): self._folder / each[0] / each[1] for each in wanted})
        with self._lock:
            self._fetched |= wanted
            self._requested -= wanted

    def taken_in(self) -> set[_Name]:
        """Return what was fetched and is no longer in `incoming`: it is in a table, or nobody wants it."""
        with self._lock:
            return {each for each in self._fetched if not (self._folder / each[0] / each[1]).exists()}

    def remove(self, done: Collection[_Name]) -> None:
        """Remove from the store what trials put there, once the tables that have it are there. Raises StoreError."""
        self._store.delete([_waiting(*each) for each in done])
        with self._lock:
            self._fetched.difference_update(done)

    def begin(self, found: Iterable[str]) -> None:
        """Learn what is published from a listing of the store."""
        self._published.update(filter(None, map(kept_file, found)))

    def publish(self, names: Collection[str], *, only: bool) -> None:
        """Have the files of journaled evaluations published soon; with `only`, have all others withdrawn."""
        with self._lock:
            self._wanted.update({*names} - self._published)
            if only:
                self._withdrawn |= self._published.difference(names)

    def lost(self) -> list[str]:
        """Return the files of journaled evaluations that were found nowhere."""
        with self._lock:
            return sorted(self._lost)

    def work(self) -> None:
        """Do what is asked for. Raises StoreError; the rest is done the next time.

        One thread at a time: the driver at its end and the mirror would both bring the same file, and one of them
        remove it while the other reads it.
        """
        with self._working:
            with self._lock:
                wanted, withdrawn = {*self._wanted}, {*self._withdrawn}
            self._store.move_all({_final(each): _waiting(KEPT, each) for each in withdrawn})
            for name in wanted:
                path = self._folder / KEPT / name
                if path.exists():
                    self._store.put(_waiting(KEPT, name), path)
                    path.unlink()
            absent = self._store.move_all({_waiting(KEPT, each): _final(each) for each in wanted})
            lost = {each for each in wanted if _waiting(KEPT, each) in absent and not self._store.exists(_final(each))}
            with self._lock:
                self._wanted -= wanted
                self._withdrawn -= withdrawn
                self._published = (self._published - withdrawn) | (wanted - lost)
                self._lost |= lost


def _waiting(table: str, name: str) -> str:
    return f"{INCOMING}/{table}/{name}"


def _final(name: str) -> str:
    return f"tables/{KEPT}/{name}"


_log = logging.getLogger(__name__)


class LargeTables:
    """Moves trial-written files from `incoming` into the tables readers see.

    A file becomes visible only after its evaluation was journaled, and keeps its name and content from then on.
    """

    def __init__(
        self, generations: Generations, schemas: Mapping[str, pa.Schema], arrivals: StoreArrivals | None = None
    ) -> None:
        self._generations, self._schemas, self._arrivals = generations, schemas, arrivals
        self._kept: set[str] = set()
        here = [table for table in LARGE_TABLES if arrivals is None or table != KEPT]
        self._waiting: dict[str, dict[str, int]] = {table: {} for table in here}
        self._published = dict.fromkeys(self._waiting, 0)
        self._lost: dict[str, list[str]] = {table: [] for table in ALWAYS_WRITTEN if table in self._waiting}

    def missing(self) -> dict[str, list[str]]:
        """Return, by table, the names of the files of journaled evaluations that are not there, nor on their way."""
        found = {KEPT: names} if self._arrivals is not None and (names := self._arrivals.lost()) else {}
        for table, lost in self._lost.items():
            present = {path.name for path in (self._generations.incoming / table).iterdir()}
            awaited = (name for name in self._waiting[table] if name not in present and not self._comes(table, name))
            if names := sorted({*lost, *awaited}):
                found[table] = names
        return found

    def expect(self, evaluations: Iterable[Mapping[str, Any]]) -> None:
        """Note the files of newly journaled evaluations, given as rows of `evaluations`.

        Seeds of the final stage are measured without curvature, so they write no file of its tables.
        """
        for row in evaluations:
            name = part_name(row["trial"], row["replicate"], row["epoch"])
            for table in self._lost if row.get("stage") == FINAL else self._waiting:
                self._waiting[table][name] = LOOKS
                if self._arrivals is not None:
                    self._arrivals.request(table, name)
            self._kept.add(name)

    def publish_kept(self, *, only: bool = False) -> None:
        """Have what was expected published where it stays; with `only`, what was not is taken away from there."""
        if self._arrivals is not None:
            self._arrivals.publish(self._kept, only=only)
        self._kept.clear()

    def publish(self, generation: Path, *, everything: bool = False) -> None:
        """Rename what has arrived into `generation`; large numbers of small files are merged first.

        Args:
            generation: the published one.
            everything: also publish what would otherwise wait for more to be merged with.
        """
        self.publish_kept()
        for table in self._waiting:
            arrived = self._arrived(table)
            while arrived and self._published[table] < SINGLE_PARTS:
                self._move(arrived.pop(0), generation)
            while len(arrived) >= MERGED_PARTS or (everything and arrived):
                group = _first_group(arrived)
                arrived = arrived[len(group) :]
                self._merge(group, generation)
            self._give_up(table)

    def carry_over(self, before: Path, after: Path) -> None:
        """Give the unpublished generation `after` every sound file of journaled evaluations that `before` shows.

        Evaluations passed to `expect` are journaled; those carried over are no longer waited for. A merged
        file is carried whole. Damaged files are quarantined with a warning.
        """
        for table, waiting in self._waiting.items():
            # Merged files first: a single one that is inside a merged one as well must not count twice.
            for part in sorted((before / table).glob("c*.parquet"), key=lambda part: trial_of(part.name) is not None):
                if not waiting or (after / table / part.name).exists():
                    continue
                names = self._sound(part)
                if names and names <= waiting.keys():
                    carry(part, after / table)
                    self._published[table] += 1
                    for name in names:
                        del waiting[name]
                        if self._arrivals is not None:
                            self._arrivals.forget(table, name)
                elif names and not names.isdisjoint(waiting):
                    self._split(part, names & waiting.keys())

    def clear_incoming(self) -> None:
        """Remove files of evaluations that were never journaled; no trial may be running."""
        for table in self._waiting:
            for leftover in (self._generations.incoming / table).iterdir():
                # A file that the mirror of a store is fetching has a temporary name, and another a moment later.
                if leftover.name not in self._waiting[table] and not leftover.name.startswith(own_temporary_names()):
                    leftover.unlink(missing_ok=True)

    def _arrived(self, table: str) -> list[Path]:
        waiting, arrived = self._waiting[table], []
        present = {path.name for path in (self._generations.incoming / table).iterdir()} if waiting else set()
        for name in waiting:
            if name in present:
                arrived.append(self._generations.incoming / table / name)
            elif not self._comes(table, name):
                waiting[name] -= 1
        return arrived

    def _comes(self, table: str, name: str) -> bool:
        return self._arrivals is not None and self._arrivals.pending(table, name)

    def _move(self, part: Path, generation: Path) -> None:
        table = part.parent.name
        part.replace(generation / table / part.name)
        del self._waiting[table][part.name]
        self._published[table] += 1

    def _give_up(self, table: str) -> None:
        for name in [name for name, looks in self._waiting[table].items() if looks <= 0]:
            del self._waiting[table][name]
            if table in self._lost:
                self._lost[table].append(name)
            if self._published[table]:
                _log.warning("%s of %s were journaled as written but are missing", table, name)

    def _merge(self, group: Sequence[Path], generation: Path) -> None:
        if len(group) == 1:
            self._move(group[0], generation)
            return
        table = group[0].parent.name
        tables = {part: read for part in group if (read := self._read(part)) is not None}
        if tables:
            first = next(iter(tables)).stem
            target = generation / table / f"{first}-and-{len(tables) - 1}-more.parquet"
            names = " ".join(part.name for part in tables)
            whole = pa.concat_tables(tables.values())
            whole = whole.replace_schema_metadata({MERGED_KEY: names})
            write_parquet(target, whole.schema, whole.combine_chunks().to_batches())
            self._published[table] += 1
        for part in group:
            part.unlink(missing_ok=True)
            del self._waiting[table][part.name]

    def _split(self, part: Path, wanted: set[str]) -> None:
        """Put the evaluations `wanted` of a merged file back into `incoming`, a file each.

        The rest of the file is of evaluations that the journal does not have any more.
        """
        table = self._read(part)
        if table is None:
            return
        for name in sorted(wanted):
            trial, replicate, epoch = Path(name).stem.split("-")
            of_replicate = (pc.field("trial") == trial) & (pc.field("replicate") == int(replicate[1:]))
            rows = of_replicate & (pc.field("epoch") == int(epoch[1:]))
            chosen = table.filter(rows).replace_schema_metadata(None)
            write_parquet(self._generations.incoming / part.parent.name / name, chosen.schema, chosen.to_batches())

    def _read(self, part: Path) -> pa.Table | None:
        try:
            require_sound(part)
            with pq.ParquetFile(part) as file:
                return file.read()
        except (OSError, ValueError) as error:
            self._warn(part, str(error))
            return None

    def _sound(self, part: Path) -> set[str] | None:
        """Return the names of the evaluations a file holds; set it aside and return `None` when it is damaged."""
        try:
            require_sound(part)
            with pq.ParquetFile(part) as file:
                listed = (file.metadata.metadata or {}).get(MERGED_KEY)
                self._require_columns(part, file.schema_arrow)
        except (OSError, ValueError) as error:
            self._warn(part, str(error))
            return None
        return set(listed.decode().split()) if listed is not None else {part.name}

    def _require_columns(self, part: Path, found: pa.Schema) -> None:
        """Raise ValueError for a column that the table lacks: somebody else has written the file."""
        expected = self._schemas[part.parent.name]
        for field in found:
            if expected.get_field_index(field.name) < 0 or expected.field(field.name).type != field.type:
                raise ValueError(f"its column {field.name!r} ({field.type}) is not in the table")

    def _warn(self, part: Path, reason: str) -> None:
        kept = self._generations.set_aside(part)
        _log.warning("quarantined damaged %s of %s as %s: %s", part.parent.name, part.stem, kept, reason)


def _first_group(parts: Sequence[Path]) -> list[Path]:
    """Return the first files that together make one merged file."""
    group: list[Path] = []
    size = 0
    for part in parts[:MERGED_PARTS]:
        size += part.stat().st_size
        if group and size > MERGED_BYTES:
            break
        group.append(part)
    return group

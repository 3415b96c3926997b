"""The tables that trials write themselves: published once their evaluation is journaled, carried over on a rebuild.

In a shared folder, trials write them to `incoming`; from a store, `StoreArrivals` downloads them there.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sweeper.core.errors import SweeperError
from sweeper.core.ids import KEPT, is_table_file, kept_file, trial_of
from sweeper.tables.file_list import EMPTY_PART, TRIALS_FILE, FileList, read_list
from sweeper.tables.generations import INCOMING, Generations, carry
from sweeper.tables.rows import FINAL
from trainables.files.atomic import own_temporary_names
from trainables.files.sealed import require_sound
from trainables.files.stores.object_store import Store
from trainables.worker.trial_tables import part_name, write_parquet

#: The tables whose rows do not pass through the journal. A sweep can lack files of some of these tables.
LARGE_TABLES = ("predictions", "reliability", "spectra", "blocks")

#: The tables that trials write at every evaluation: if the journal has an evaluation without a file, the file was lost.
ALWAYS_WRITTEN = ("predictions", "reliability")

#: Number of evaluations that are published as separate files; pyarrow takes 1 s to read a thousand files.
SINGLE_PARTS = 1000

#: Later evaluations are merged before they are published, this many into one file.
MERGED_PARTS = 64

#: Largest size of a merged file, which bounds the memory for merging.
MERGED_BYTES = 32 * 2**20

#: A missing file is searched for during this many flushes, since a network file system may show it late.
LOOKS = 3

#: Key of the Parquet metadata in which a merged file lists the files it was made of.
MERGED_KEY = b"evaluations"

#: The end of a merged file's name, with its number of further evaluations.
_MORE = "-and-%d-more"

#: A table and the name of one of its files.
_Name = tuple[str, str]


def evaluations_in(name: str) -> int:
    """Return the number of evaluations in a file that trials wrote, from its name.

    Example:
        >>> evaluations_in("c00007-r0-e00009.parquet"), evaluations_in("c00007-r0-e00009-and-63-more.parquet")
        (1, 64)
    """
    match = re.search(_MORE.replace("%d", r"(\d+)"), name)
    return 1 + int(match[1]) if match else 1


class StoreArrivals:
    """Trials' tables in a store: files of `KEPT` are published in the store, others downloaded. Thread-safe.

    Files of `KEPT` are too large to pass through the driver. A trial uploads one below `incoming`; once its evaluation
    is journaled, the store renames it to its final name below `tables`, without a download.
    """

    def __init__(self, store: Store, incoming: Path) -> None:
        """Begin without requests.

        Args:
            store: store of the sweep.
            incoming: local folder of downloaded files, and of files that the driver itself provides.
        """
        self._store, self._folder = store, incoming
        # `_lock` guards the sets for moments, so the driver never waits for the store; `_working` is held during
        # transfers.
        self._lock, self._working = threading.Lock(), threading.Lock()
        self._published: set[str] = set()
        self._wanted: set[str] = set()
        self._withdrawn: set[str] = set()
        self._lost: set[str] = set()
        self._requested: set[_Name] = set()
        self._fetched: set[_Name] = set()

    def request(self, table: str, name: str) -> None:
        """Request a file that a trial has uploaded. Raises SweeperError if it is not a table's file."""
        if not is_table_file(table, name):
            raise SweeperError(
                f"the journal names a file that is not a table file: {table}/{name}",
                "nothing was downloaded; a sweep does not write such a record, so find out who changed the journal",
            )
        with self._lock:
            self._requested.add((table, name))

    def pending(self, table: str, name: str) -> bool:
        """Return whether a requested file has not arrived yet."""
        return (table, name) in self._requested

    def forget(self, table: str, name: str) -> None:
        """Cancel the request for a file that exists already."""
        with self._lock:
            self._requested.discard((table, name))

    def fetch(self) -> None:
        """Download the requested files. Raises StoreError."""
        with self._lock:
            wanted = {*self._requested}
        self._store.download_all({_waiting(t, name): self._folder / t / name for t, name in wanted})
        with self._lock:
            self._fetched |= wanted
            self._requested -= wanted

    def taken_in(self) -> set[_Name]:
        """Return the downloaded files that are no longer in `incoming`, because they were published or discarded."""
        with self._lock:
            return {(table, name) for table, name in self._fetched if not (self._folder / table / name).exists()}

    def remove(self, done: Collection[_Name]) -> None:
        """Remove trials' uploads from the store, once the published tables are there. Raises StoreError."""
        self._store.delete([_waiting(table, name) for table, name in done])
        with self._lock:
            self._fetched.difference_update(done)

    def begin(self, listing: Iterable[str]) -> None:
        """Note the published files in a listing of the store."""
        self._published.update(filter(None, map(kept_file, listing)))

    def publish(self, names: Collection[str], *, only: bool) -> None:
        """Schedule files of journaled evaluations for publication; with `only`, withdraw all others."""
        with self._lock:
            self._wanted.update({*names} - self._published)
            if only:
                self._withdrawn |= self._published.difference(names)

    def lost(self) -> list[str]:
        """Return the files of journaled evaluations that are missing from the store."""
        with self._lock:
            return sorted(self._lost)

    def published(self) -> set[str]:
        """Return the files that the store keeps under their final names."""
        with self._lock:
            return self._published - self._withdrawn

    def work(self) -> None:
        """Publish and withdraw the scheduled files. Raises StoreError; the next call then does the rest."""
        # One thread at a time: otherwise the driver, when it ends, and the mirror would both upload the same file, and
        # one would remove it while the other reads it.
        with self._working:
            with self._lock:
                wanted, withdrawn = {*self._wanted}, {*self._withdrawn}
            self._store.move_all({_final(name): _waiting(KEPT, name) for name in withdrawn})
            for name in wanted:
                path = self._folder / KEPT / name
                if path.exists():
                    self._store.put(_waiting(KEPT, name), path)
                    path.unlink()
            absent = self._store.move_all({_waiting(KEPT, name): _final(name) for name in wanted})
            # A file without its waiting name may have been moved by an earlier call that was interrupted.
            lost = {n for n in wanted if _waiting(KEPT, n) in absent and not self._store.exists(_final(n))}
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
    """Moves files of trials from `incoming` to the published tables.

    A file becomes visible once its evaluation is journaled, and keeps its name and content from then on. Published and
    lost files are added to `files`.
    """

    def __init__(
        self,
        generations: Generations,
        schemas: Mapping[str, pa.Schema],
        files: FileList,
        arrivals: StoreArrivals | None = None,
    ) -> None:
        self._generations, self._schemas, self._files, self._arrivals = generations, schemas, files, arrivals
        self._kept: set[str] = set()
        tables = [table for table in LARGE_TABLES if arrivals is None or table != KEPT]
        self._waiting: dict[str, dict[str, int]] = {table: {} for table in tables}
        self._always = [table for table in ALWAYS_WRITTEN if table in self._waiting]

    def missing(self) -> dict[str, list[str]]:
        """Return, by table, the files of journaled evaluations that neither exist nor are being downloaded."""
        self.list_kept()
        missing = {table: {*names} for table, names in self._files.lost.items()}
        for table in self._always:
            present = {path.name for path in (self._generations.incoming / table).iterdir()}
            awaited = {name for name in self._waiting[table] if name not in present and not self._comes(table, name)}
            missing[table] = missing.get(table, set()) | awaited
        return {table: sorted(names) for table, names in missing.items() if names}

    def list_kept(self) -> None:
        """Update the list of files that are published in the store."""
        if self._arrivals is not None:
            self._files.published[KEPT] = {EMPTY_PART, *self._arrivals.published()}
            self._files.lost[KEPT] = {*self._arrivals.lost()}

    def note_losses(self, before: Path) -> None:
        """Note the files of the generation `before` that are gone, of tables that not every evaluation writes.

        Call it after `carry_over`.
        """
        try:
            listed = read_list(before / TRIALS_FILE) or FileList()
        except (OSError, ValueError):  # `trials` is damaged: its list is lost
            listed = FileList()
        damaged = {(path.parent.name, path.name) for path in self._generations.damaged}
        for table in self._waiting.keys() - {*self._always}:
            known = listed.published.get(table, set()) | listed.lost.get(table, set())
            gone = {n for n in known if not (before / table / n).exists()} | {n for t, n in damaged if t == table}
            # Of a merged file, only its name is known here; its evaluations may be in a split-off file by now.
            expected = {n for n in gone if n in self._waiting[table] or (trial_of(n) is None and n != EMPTY_PART)}
            present = self._files.published.get(table, set()) | {*os.listdir(self._generations.incoming / table)}
            self._files.lost[table] = expected - present

    def expect(self, evaluations: Iterable[Mapping[str, Any]]) -> None:
        """Expect the files of newly journaled evaluations, given as rows of `evaluations`."""
        for row in evaluations:
            name = part_name(row["trial"], row["replicate"], row["epoch"])
            # Seeds of the final stage are measured without spectra and layers, so they write no file of these tables.
            for table in self._always if row.get("stage") == FINAL else self._waiting:
                self._waiting[table][name] = LOOKS
                if self._arrivals is not None:
                    self._arrivals.request(table, name)
            self._kept.add(name)

    def publish_kept(self, *, only: bool = False) -> None:
        """Schedule expected files of `KEPT` for publication in the store; with `only`, withdraw all others."""
        if self._arrivals is not None:
            self._arrivals.publish(self._kept, only=only)
        self._kept.clear()

    def publish(self, generation: Path, *, everything: bool = False) -> None:
        """Move arrived files into `generation`; many small files are merged first.

        Args:
            generation: the published generation.
            everything: also publish files that would otherwise wait to be merged with later files.
        """
        self.publish_kept()
        for table in self._waiting:
            arrived = self._arrived(table)
            while arrived and len(self._files.published.get(table, ())) <= SINGLE_PARTS:
                self._move(arrived.pop(0), generation)
            while len(arrived) >= MERGED_PARTS or (everything and arrived):
                group = _first_group(arrived)
                arrived = arrived[len(group) :]
                self._merge(group, generation)
            self._give_up(table, at_once=everything)

    def carry_over(self, before: Path, after: Path) -> None:
        """Copy every sound file of journaled evaluations from generation `before` to the unpublished `after`.

        The journaled evaluations are those passed to `expect`; evaluations that are carried over are no longer
        expected. A merged file is carried as a whole. Damaged files are quarantined with a warning.
        """
        for table, waiting in self._waiting.items():
            # Merged files first: a file whose rows are also in a merged file must not be published twice.
            for part in sorted((before / table).glob("c*.parquet"), key=lambda part: trial_of(part.name) is not None):
                if not waiting or (after / table / part.name).exists():
                    continue
                names = self._sound(part)
                if names and names <= waiting.keys():
                    carry(part, after / table)
                    self._files.add(table, part.name)
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
                # The mirror of a store may be downloading a file under a temporary name, which it renames a moment
                # later.
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
        self._files.add(table, part.name)

    def _give_up(self, table: str, *, at_once: bool) -> None:
        given_up = [name for name, looks in self._waiting[table].items() if looks <= 0]
        if at_once:
            given_up = [name for name in self._waiting[table] if not self._comes(table, name)]
        for name in given_up:
            del self._waiting[table][name]
            if table in self._always:
                self._files.lost.setdefault(table, set()).add(name)
            # Without any published file, the table was not requested, or the sweep writes none.
            if self._files.published.get(table, set()) - {EMPTY_PART}:
                _log.warning("the journal says that %s of %s was written, but the file is missing", table, name)

    def _merge(self, group: Sequence[Path], generation: Path) -> None:
        if len(group) == 1:
            self._move(group[0], generation)
            return
        table = group[0].parent.name
        tables = {part: read for part in group if (read := self._read(part)) is not None}
        if tables:
            first = next(iter(tables)).stem
            target = generation / table / f"{first}{_MORE % (len(tables) - 1)}.parquet"
            names = " ".join(part.name for part in tables)
            whole = pa.concat_tables(tables.values())
            whole = whole.replace_schema_metadata({MERGED_KEY: names})
            write_parquet(target, whole.schema, whole.combine_chunks().to_batches())
            self._files.add(table, target.name)
        for part in group:
            part.unlink(missing_ok=True)
            del self._waiting[table][part.name]
            if part not in tables and table in self._always:  # it was damaged
                self._files.lost.setdefault(table, set()).add(part.name)

    def _split(self, part: Path, wanted: set[str]) -> None:
        """Split the evaluations `wanted` off a merged file, into one file each in `incoming`.

        The rest of the file belongs to evaluations that the journal no longer has.
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
        """Return the names of a file's evaluations; quarantine a damaged file and return `None`."""
        try:
            require_sound(part)
            with pq.ParquetFile(part) as file:
                listed = (file.metadata.metadata or {}).get(MERGED_KEY)
                self._require_columns(part, file.schema_arrow)
        except (OSError, ValueError) as error:
            self._warn(part, str(error))
            return None
        return set(listed.decode().split()) if listed is not None else {part.name}

    def _require_columns(self, part: Path, schema: pa.Schema) -> None:
        """Raise ValueError for a column that the table lacks, since the file is then not a trial's."""
        expected = self._schemas[part.parent.name]
        for field in schema:
            if expected.get_field_index(field.name) < 0 or expected.field(field.name).type != field.type:
                raise ValueError(f"its column {field.name!r} ({field.type}) is not a column of the table")

    def _warn(self, part: Path, reason: str) -> None:
        kept = self._generations.set_aside(part)
        _log.warning("quarantined damaged %s of %s as %s: %s", part.parent.name, part.stem, kept, reason)


def _first_group(parts: Sequence[Path]) -> list[Path]:
    """Return the first files that fit into one merged file."""
    group: list[Path] = []
    size = 0
    for part in parts[:MERGED_PARTS]:
        size += part.stat().st_size
        if group and size > MERGED_BYTES:
            break
        group.append(part)
    return group

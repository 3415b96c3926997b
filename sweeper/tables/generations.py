"""Generations of tables: folders that readers cannot see until one symbolic link is renamed to publish them.

Readers use the link `tables`. They may list files before a swap and open them after it. So every later generation keeps
each published file name with the same rows; a swap only repairs and adds files.

Files that trials wrote cannot be rebuilt from the journal. A generation is removed only once another one is known to
have all of them. If the link was lost when a sweep was copied, or was replaced by a folder, the files are recovered.

The table `recalibrations` is stored outside the generations, in `<sweep>/recalibrations/`. A file contains the result
of one request, and depends only on that request and on the sweep's predictions. Each generation links to that folder by
the table's name, so readers find it at `<sweep>/tables/recalibrations/**/*.parquet`, and no rebuild can lose it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import RECALIBRATIONS, TABLES, SweepPaths
from sweeper.tables.file_list import EMPTY_PART, FileList, read_list
from trainables.files.atomic import clear_leftovers, replacing
from trainables.files.locks import LockHeldError, file_lock
from trainables.files.sealed import require_sound
from trainables.metrics import METRIC_NAMES
from trainables.worker.trial_tables import COUNT, NUMBER, TEXT, evaluation_schema, write_parquet

#: One row per evaluation, split and request. `options`: JSON of the options that differ from the method's defaults;
#: `parameters`: JSON of all fitted values; `samples`: size of the split; `unavailable`: why the row has no values;
#: `metrics`: JSON of further metrics (`metrics->>'smooth_ece'` in SQL), null if none were requested.
RECALIBRATIONS_SCHEMA = evaluation_schema(
    split=TEXT, method=TEXT, bins=COUNT, options=TEXT, samples=COUNT, temperature=NUMBER, gamma=NUMBER, parameters=TEXT,
    unavailable=TEXT, **dict.fromkeys(METRIC_NAMES, NUMBER), metrics=TEXT,
)  # fmt: skip

#: Key of the Parquet metadata with a file's digest and the time it was written.
_FACTS = b"recalibration"


@dataclass(frozen=True)
class RecalibrationPart:
    """One file of the table: its path, a digest of its rows, and the time these rows were first written (ms, UTC)."""

    path: Path
    digest: str
    written: int


def link_recalibrations(paths: SweepPaths, generation: Path) -> None:
    """Link the folder of recalibrations into `generation`; create it, with a file without rows, if it is missing."""
    if not (paths.recalibrations / EMPTY_PART).exists():
        list_recalibrations(paths, listed_recalibrations(paths))
    link = generation / RECALIBRATIONS
    if not link.exists():
        # Relative, so that a sweep's folder can be moved.
        link.symlink_to(Path("..") / ".." / paths.recalibrations.name, target_is_directory=True)


def list_recalibrations(paths: SweepPaths, names: Collection[str] = ()) -> None:
    """Write the file without rows, whose footer lists the files of recalibrations: `names` and itself."""
    metadata = FileList({RECALIBRATIONS: {EMPTY_PART, *names}}).metadata()
    write_parquet(paths.recalibrations / EMPTY_PART, RECALIBRATIONS_SCHEMA.with_metadata(metadata), [])


def listed_recalibrations(paths: SweepPaths) -> set[str]:
    """Return the names of the listed files; those that exist if the list is missing or damaged."""
    try:
        files = read_list(paths.recalibrations / EMPTY_PART)
    except (OSError, ValueError):
        files = None
    present = {path.name for path in paths.recalibrations.glob("*.parquet")}
    return present if files is None else files.published.get(RECALIBRATIONS, set())


@contextmanager
def writing(paths: SweepPaths) -> Iterator[None]:
    """Hold the lock of recalibrations, and remove unfinished files of dead writers.

    Raises SweeperError if another process holds the lock, or the folder cannot be written to.
    """
    with ExitStack() as guard:
        try:
            with writing_to(f"the results folder {paths.root}", "make it writable"):
                paths.recalibrations.mkdir(exist_ok=True)
                guard.enter_context(file_lock(paths.root / "recalibrations.lock", patience=0))
        except LockHeldError as error:
            raise SweeperError(
                f"another process is already recalibrating the sweep {paths.name!r}", "try again when it has finished"
            ) from error
        clear_leftovers(paths.recalibrations)
        yield


def write_part(paths: SweepPaths, name: str, batches: Sequence[pa.RecordBatch]) -> None:
    """Write the rows of one request and replace its earlier rows; a file with equal rows stays unchanged.

    Raises SweeperError if the file cannot be written.
    """
    # An unchanged file keeps its time, which tells trackers that they have its points already.
    digest = _digest(batches)
    path = paths.recalibrations / name
    if path.exists() and (known := _facts(path)) is not None and known["digest"] == digest:
        return
    facts = json.dumps({"digest": digest, "written": round(time.time() * 1000)})
    with writing_to(path, "free space or make the folder writable"):
        write_parquet(path, RECALIBRATIONS_SCHEMA.with_metadata({_FACTS: facts}), batches, durable=True)
        if name not in (known_names := listed_recalibrations(paths)):
            list_recalibrations(paths, known_names | {name})


def recalibration_parts(paths: SweepPaths) -> list[RecalibrationPart]:
    """Return the files of recalibrations, sorted by name."""
    files = ((path, _facts(path)) for path in sorted(paths.recalibrations.glob("*.parquet")))
    return [RecalibrationPart(path, facts["digest"], facts["written"]) for path, facts in files if facts is not None]


def state_of_recalibrations(parts: Sequence[RecalibrationPart]) -> str:
    """Return a digest of all files, which changes with every new or changed recalibration; empty without any."""
    whole = " ".join(f"{part.path.name}:{part.digest}" for part in parts)
    return hashlib.sha256(whole.encode()).hexdigest()[:16] if whole else ""


def _facts(path: Path) -> Mapping[str, Any] | None:
    """Return a file's digest and time; None for a file that has no rows, is damaged, or was not written by sweeper."""
    try:
        require_sound(path)
        facts: Mapping[str, Any] = json.loads((pq.read_schema(path).metadata or {}).get(_FACTS, b"{}"))
    except (OSError, ValueError):
        return None
    return facts if {"digest", "written"} <= facts.keys() else None


def _digest(batches: Sequence[pa.RecordBatch]) -> str:
    sink = hashlib.sha256()  # of the rows, since the bytes of a Parquet file depend on the release of pyarrow
    for batch in batches:
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            sink.update(repr(row).encode())
    return sink.hexdigest()


#: Folder of trials' tables until their evaluation is journaled; no reader's pattern matches it.
INCOMING = "incoming"

#: Folder of damaged files, which are kept for inspection.
DAMAGED = "damaged"

_NUMBER = re.compile(r"\d{4,}")


class Generations:
    """The folder `generations/` of one sweep, and the link that points into it."""

    def __init__(self, paths: SweepPaths) -> None:
        self._paths = paths
        self.incoming = paths.generations / INCOMING
        self.damaged: list[Path] = []
        self.unproven: list[Path] = []
        self.recovered: list[str] = []

    @property
    def current(self) -> Path | None:
        """The published generation, or `None` before the first."""
        folder = Path(os.path.realpath(self._paths.tables))  # `resolve` raises for a link to itself
        return folder if self._paths.tables.is_symlink() and folder.is_dir() else None

    def clean(self) -> None:
        """Remove leftovers of dead drivers: older and unpublished generations, unfinished files.

        A generation with files of trials that the current one lacks stays until `remove_superseded`, and is listed in
        `unproven`. Only the holder of the sweep's lease may call this.
        """
        root = self._paths.generations
        root.mkdir(parents=True, exist_ok=True)
        if self.current is None:
            self._take_up()
        current = self.current
        for folder in self._numbered():
            if current is not None and folder != current and _trial_files(folder) <= _trial_files(current):
                shutil.rmtree(folder)
        self.unproven = [folder for folder in self._numbered() if folder != current]
        # A linked folder does not belong to the driver: `sweeper recalibrate` may be writing there now.
        folders = (folder for folder in root.glob("*/*") if folder.is_dir() and not folder.is_symlink())
        for folder in (self._paths.journal, *folders, *self._paths.checkpoints.glob("**/")):
            clear_leftovers(folder)
        clear_leftovers(self._paths.root, shared=True)  # `sweeper report` may be writing there
        for table in TABLES:
            (self.incoming / table).mkdir(parents=True, exist_ok=True)
            if current is not None:
                # Object stores and some archives do not keep empty folders.
                (current / table).mkdir(exist_ok=True)

    def remove_superseded(self) -> None:
        """Remove the generations in `unproven`, once the current one has all their sound files."""
        for folder in self.unproven:
            shutil.rmtree(folder)
        self.unproven = []

    def drop_lost_recalibrations(self) -> None:
        """List only the files of recalibrations that exist; note which others were listed."""
        listed = listed_recalibrations(self._paths)
        lost = sorted(name for name in listed - {EMPTY_PART} if not (self._paths.recalibrations / name).exists())
        if lost:
            list_recalibrations(self._paths, listed.difference(lost))
            self.recovered.append(
                f"recalibrations were lost: {', '.join(lost)}; `sweeper recalibrate {self._paths.in_commands}` with "
                "the same options makes them again"
            )

    def create(self) -> Path:
        """Create the folder of the next generation, with an empty folder for each table; readers do not see it."""
        generation = self._next()
        for table in TABLES:
            (generation / table).mkdir(parents=True)
        link_recalibrations(self._paths, generation)
        return generation

    def publish(self, generation: Path) -> None:
        """Make `generation` visible to readers; the previous one stays until the sweep is opened again."""
        # Rename a new link over the old one: between removing and creating a link, readers would find no tables.
        with replacing(self._paths.tables) as link:
            link.symlink_to(generation.relative_to(self._paths.root), target_is_directory=True)

    def set_aside(self, part: Path) -> Path:
        """Move a damaged file to a folder that readers do not see, and return its new path."""
        folder = self._paths.generations / DAMAGED / part.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / part.name
        part.replace(target)
        self.damaged.append(target)
        return target

    def _numbered(self) -> list[Path]:
        """Return the folders of generations, the oldest first."""
        folders = [folder for folder in self._paths.generations.iterdir() if _NUMBER.fullmatch(folder.name)]
        return sorted(folders, key=lambda folder: int(folder.name))

    def _next(self) -> Path:
        newest = max((int(folder.name) for folder in self._numbered()), default=0)
        return self._paths.generations / f"{newest + 1:04d}"

    def _take_up(self) -> None:
        """If the link to the tables is missing or a folder, publish that folder, or the generation with most trials."""
        tables, own = self._paths.tables, self._paths.tables / RECALIBRATIONS
        if tables.is_dir() and not tables.is_symlink():
            if own.is_dir() and not own.is_symlink() and not self._paths.recalibrations.exists():
                own.rename(self._paths.recalibrations)
            chosen = self._next()
            tables.rename(chosen)
            cause = "was a folder, probably because a copy followed the link"
        else:
            numbered = self._numbered()
            if not numbered:
                return
            chosen = max(numbered, key=lambda folder: (len(_trial_files(folder)), int(folder.name)))
            cause = "was missing or broken"
        for table in TABLES:
            (chosen / table).mkdir(exist_ok=True)
        self.publish(chosen)
        files = len(_trial_files(chosen))
        self.recovered.append(f"the link {tables.name} {cause}: recovered {files} files that trials wrote")


def _trial_files(generation: Path) -> set[tuple[str, str]]:
    """Return (table, name) of the files that trials wrote; only their names begin with a trial's name."""
    return {(table, part.name) for table in TABLES for part in (generation / table).glob("c*.parquet")}


def carry(part: Path, folder: Path) -> None:
    """Put the same file into `folder`: as a hard link if the file system supports it, else as a copy."""
    target = folder / part.name
    try:
        target.hardlink_to(part)
    except OSError:
        shutil.copy2(part, target)

"""The location of sweeps: a local or shared folder, or an object store.

A sweep in a store also has folders on this machine: one for its driver, another for readers. The store is the source of
truth; both folders can be deleted whenever no command uses them. Names in the store equal those in the results folder,
except that `tables` holds the files themselves, since a store has no symbolic links.

A readers' copy lies in the cache and keeps its store's address in a file. Outside the cache that file is ignored:
somebody else's folder must not decide what this machine downloads. Predictions are downloaded only when they are read.

Anybody who can write to a store can choose names in it. Only names of known patterns become files; other objects stay
in the store. A name that would leave its folder is an error, because it cannot arise by accident.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.core.ids import (
    KEPT,
    RECALIBRATIONS,
    TABLES,
    SweepPaths,
    cache_folder,
    is_sweep_name,
    is_table_file,
    kept_file,
    trial_of,
)
from sweeper.storage.lease import LEASE, holder
from sweeper.storage.lookup import find_sweep, refuse_odd_files
from sweeper.storage.store_journal import fetch_journal, read_terms
from trainables.files.atomic import read_text, write_text
from trainables.files.stores.base import Entry, StoreError, is_store_address
from trainables.files.stores.object_store import Store
from trainables.registry.names import hint

#: Files of a sweep that are uploaded unchanged.
WHOLE_FILES = ("sweep.yaml", "manifest.json", "extensions.zip", "report.html", "sweeper.log", "mlflow.log")

_DAMAGED_RECORD = re.compile(r"\d{10}-([a-z]+(-c\d+)?(-e\d+)?\.json|\d{10}\.records)\.damaged")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\\]")

#: Uses of a local folder for a sweep in a store. Separate, so that a reader cannot disturb a driver's files.
DRIVING, READING = "driving", "reading"

FIRST_GENERATION = "0001"

#: Object that asks the driver to stop.
STOP = "stop"

#: Most listings of a store per fetch. If a journal object is merged meanwhile, the store must be listed again.
LISTINGS = 5

#: Beginning of an address; one slash suffices, since `Path("s3://a")` keeps only one.
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """The location that `--output` names.

    Attributes:
        folder: Folder on this machine.
        store: Store that the folder mirrors; `None` if the folder itself is the location.
    """

    folder: Path
    store: Store | None = None

    @property
    def address(self) -> str:
        """The location as a user writes it."""
        return self.store.uri if self.store is not None else str(self.folder)

    def has(self, name: str) -> bool:
        """Return whether the store has a sweep of that name. Raises StoreError if it cannot be asked."""
        return self.store is not None and self.store.exists(f"{name}/sweep.yaml")

    def find(self, name: str) -> SweepPaths:
        """Return the local paths of an existing sweep. Raises SweeperError if there is none."""
        if self.store is None:
            return find_sweep(name, self.folder)
        if not is_sweep_name(name) or not self.has(name):
            remedy = hint(name, self.store.folders()) or f"see `sweeper status --output {self.address}`"
            raise SweeperError(f"there is no sweep {name!r} in {self.address}", remedy)
        return SweepPaths(self.folder / name)


def place_of(output: str | Path, use: str) -> Place:
    """Return the location that `output` names.

    Args:
        output: Folder, or address of a store.
        use: `driving` or `reading`; chooses the local folder of a store.

    Raises SweeperError for an address of any other kind.
    """
    if not is_store_address(output):
        if _ADDRESS.match(str(output)):
            raise SweeperError(
                f"{output} is not a location for results",
                "give a folder, or the address of a store: s3://bucket/prefix, gs://bucket/prefix or az://container/prefix",
            )
        return Place(_folder(output))
    store = Store(str(output))
    # The digest is a short, valid folder name; an address contains slashes and perhaps a query.
    digest = hashlib.sha256(store.uri.encode()).hexdigest()[:12]
    return Place(cache_folder() / use / digest, store)


def _folder(output: str | Path) -> Path:
    """Return a folder that exists or could be created. Raises SweeperError for a name that no file system accepts."""
    try:
        Path(output).stat()
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        if number in (errno.ENAMETOOLONG, errno.ELOOP, None):
            reason = getattr(error, "strerror", None) or str(error)
            raise SweeperError(
                f"{str(output)!r} cannot be a folder: {reason}", "choose a folder with --output"
            ) from error
    return Path(output)


def split_name(name: str, output: str | Path) -> tuple[str, str]:
    """Return a sweep's name and output; split a name that is a store's address into both.

    Examples:
        >>> split_name("s3://bucket/sweeps/first?region=eu-west-1", "results")
        ('first', 's3://bucket/sweeps?region=eu-west-1')
    """
    if not is_store_address(name):
        return name, str(output)
    address, _, query = name.partition("?")
    parent, _, last = address.rstrip("/").rpartition("/")
    return last, parent + (f"?{query}" if query else "")


def local_copy(name: str, output: str | Path, *, tables: bool = True) -> tuple[str, Path]:
    """Return a sweep's name and local folder; copy it first if it is in a store.

    Downloads only files that have changed since the last time. Without `tables` it downloads no tables, because the
    journal often suffices. Raises SweeperError if there is no such sweep, StoreError if the store cannot be read.
    """
    given, (name, output) = name, split_name(name, output)
    place = place_of(output, READING)
    if place.store is None and place.folder.is_absolute() and not place.folder.is_dir() and given == name:
        raise SweeperError(
            f"there is no folder {place.folder} on this machine",
            "mount it here, or run the command on the machine that has it",
        )
    if place.store is not None:
        fetch(place.store.child(name), place.find(name).root, tables=tables)
    return name, place.folder


def local_copies(output: str | Path) -> Path:
    """Return a folder with all sweeps of `output`, without tables if it is a store."""
    place = place_of(output, READING)
    if place.store is not None:
        for name in filter(is_sweep_name, place.store.folders()):
            if place.has(name):
                fetch(place.store.child(name), place.folder / name, tables=False)
    return place.folder


def publish(name: str, output: str | Path) -> None:
    """Upload the report and the recalibrations of a copy from `local_copy` to its store."""
    name, output = split_name(name, output)
    place = place_of(output, READING)
    if place.store is not None:
        files = objects(SweepPaths(place.folder / name))
        made = {key: path for key, path in files.items() if key == "report.html" or f"/{RECALIBRATIONS}/" in key}
        # The list of recalibrations is uploaded after the files that it names.
        for last in (False, True):
            part = {key: path for key, path in made.items() if (path.name == "empty.parquet") is last}
            place.store.child(name).put_all(dict(part))


def fetch(store: Store, root: Path, *, tables: bool = True) -> Mapping[str, Entry]:
    """Make the folder `root` equal to a sweep in a store: fetch new and changed files, remove files that are gone.

    Predictions are left in the store until they are read. Returns the store's objects: name → entry.

    Raises StoreError; SweeperError if an object has a name that would leave the folder.
    """
    paths = SweepPaths(root)
    for _ in range(LISTINGS):
        entries = _fetch_once(store, paths, tables=tables)
        # `trials` can be newer than the listing, and names files that were uploaded in the meantime.
        if not (tables and _lacks_files(paths)):
            break
    return entries


def _lacks_files(paths: SweepPaths) -> bool:
    from sweeper.tables.file_list import absent_files

    try:
        return bool(absent_files(paths.tables.resolve(), {*TABLES} - {KEPT}))
    except (OSError, ValueError):  # damaged: the next reader says so
        return False


def _fetch_once(store: Store, paths: SweepPaths, *, tables: bool) -> Mapping[str, Entry]:
    paths.root.mkdir(parents=True, exist_ok=True)
    entries = _fetch_records(store, paths)
    if tables and not paths.tables.is_symlink() and any(name.startswith("tables/") for name in entries):
        from sweeper.tables.generations import link_recalibrations  # brings pyarrow along

        generation = paths.generations / FIRST_GENERATION
        generation.mkdir(parents=True, exist_ok=True)
        link_recalibrations(paths, generation)
        paths.tables.symlink_to(generation.relative_to(paths.root), target_is_directory=True)
    wanted: dict[Path, tuple[str, Entry]] = {}
    for name, entry in entries.items():
        # Checkpoints are never fetched, and trials' tables only once they are journaled.
        path = local_path(paths, name)
        if path is not None and (tables or not name.startswith("tables/")):
            wanted[path] = (name, entry)
    later = {path: entry for path, (name, entry) in wanted.items() if kept_file(name) is not None}
    fetch_changed(store, {path: wanted[path] for path in wanted.keys() - later.keys()})
    outdated = {path for path in kept_files(paths) if path in later and not is_current(path, later[path])}
    for path in outdated | (_present(paths, tables=tables) - wanted.keys()):
        path.unlink(missing_ok=True)
    write_text(paths.root / ADDRESS, store.uri)  # readers of the copy fetch predictions from there
    return entries


def _fetch_records(store: Store, paths: SweepPaths) -> dict[str, Entry]:
    """Make the journal equal to the store's; return the store's objects."""
    for _ in range(LISTINGS):
        # Read the terms after the listing, as `fetch_journal` requires.
        entries = store.entries()
        if fetch_journal(store, paths.journal, entries, read_terms(store)):
            return entries
    raise StoreError(f"the journal in {store.uri} changes faster than it can be read", "try again later")


def local_path(paths: SweepPaths, name: str) -> Path | None:
    """Return the file that an object becomes in a sweep's folder; `None` for an object that stays in the store.

    `sweeper.storage.store_journal` unpacks the journal's objects.

    Raises SweeperError if the name would leave the folder.
    """
    require_plain(name)
    first, _, rest = name.partition("/")
    if name in WHOLE_FILES or name == LEASE:
        return paths.root / name
    if first == "journal" and _DAMAGED_RECORD.fullmatch(rest):
        return paths.journal / rest
    table, _, file = rest.partition("/")
    if first == "tables" and is_table_file(table, file):
        return (paths.recalibrations if table == RECALIBRATIONS else paths.tables.resolve() / table) / file
    return None


def require_plain(name: str) -> None:
    """Raise SweeperError if an object's name has an empty part, `.`, `..` or unprintable characters."""
    if not {"", ".", ".."}.isdisjoint(name.split("/")) or _UNPRINTABLE.search(name):
        raise SweeperError(
            f"the store holds an object whose name would leave the sweep's folder: {name!r}",
            "nothing was written; somebody put it there: remove it, and find out who can write to this store",
        )


def objects(paths: SweepPaths) -> dict[str, Path]:
    """Return the files of a sweep's folder that its store must have, except the journal: object name → file.

    Predictions are excluded: trials upload them directly, and a driver's folder has only copies.
    """
    files = {name: paths.root / name for name in WHOLE_FILES if (paths.root / name).is_file()}
    generation = paths.tables.resolve()
    for path in _parquet_files(generation):
        name = f"tables/{path.relative_to(generation).as_posix()}"
        if kept_file(name) is None:
            files[name] = path
    return files


def _present(paths: SweepPaths, *, tables: bool) -> set[Path]:
    """Return the files of a folder that `fetch` removes if the store does not have them any more."""
    files = {path for path in (*paths.root.glob("*.json"), *paths.journal.glob("*.damaged")) if path.is_file()}
    files -= {paths.manifest, paths.lease}
    if tables:
        # Recalibrations made in this copy may not be published yet.
        generation = paths.tables.resolve()
        files |= {path for path in _parquet_files(generation) if path.parent.name != RECALIBRATIONS}
    return files


def _parquet_files(generation: Path) -> Iterator[Path]:
    """Yield the table files of a generation; follow its link to the recalibrations."""
    for folder in generation.iterdir() if generation.is_dir() else ():
        if folder.is_dir():
            yield from folder.glob("*.parquet")


#: File with the store's address. `local_path` maps no object to it, so a store cannot redirect a copy.
ADDRESS = ".store"

#: Size in bytes from which a download is announced, because it takes minutes.
LARGE = 2**30

_log = logging.getLogger("sweeper.storage")


def bring_predictions(paths: SweepPaths, trials: Collection[str] | None = None) -> None:
    """Download the predictions that a copy of a sweep lacks; do nothing for a sweep that is not a copy.

    Args:
        paths: Paths of the copy.
        trials: Trials whose predictions are read; all by default.

    Raises StoreError if the store cannot be read, LostFilesError if it lacks files.
    """
    if trials is not None and not trials:
        return
    wanted = stored_predictions(paths, trials)
    if trials is None and is_copy(paths):
        for path in {*kept_files(paths)} - wanted.keys():
            path.unlink(missing_ok=True)
    if wanted:
        fetch_changed(_store_of(paths), wanted)


def stored_predictions(paths: SweepPaths, trials: Collection[str] | None = None) -> Mapping[Path, tuple[str, Entry]]:
    """Return a copy's files of predictions in its store: file → object and entry; none if it is not a copy.

    Arguments and errors are those of `bring_predictions`.
    """
    from sweeper.tables.file_list import EMPTY_PART, TRIALS_FILE, FileList, LostFilesError, read_list

    if not is_copy(paths):
        return {}
    generation = paths.tables.resolve()
    try:
        listed = read_list(generation / TRIALS_FILE) or FileList()
    except (OSError, ValueError):  # damaged: the query that needs the predictions says so
        listed = FileList()
    wanted = {
        generation / KEPT / file: (name, entry)
        for name, entry in _store_of(paths).entries(f"tables/{KEPT}", recursive=False).items()
        if (file := kept_file(name)) is not None and (trials is None or trial_of(file) in trials)
    }
    published = {generation / KEPT / file for file in listed.published.get(KEPT, set()) - {EMPTY_PART}}
    lost = [path.name for path in published - wanted.keys() if trials is None or trial_of(path.name) in trials]
    if lost:
        raise LostFilesError(paths, {KEPT: sorted(lost)})
    return wanted


def _store_of(paths: SweepPaths) -> Store:
    return Store(read_text(paths.root / ADDRESS))


def is_copy(paths: SweepPaths) -> bool:
    """Return whether a sweep's folder is a copy from a store, so that its predictions are fetched when needed."""
    # Do not trust an address file in a folder that somebody else may have made.
    return paths.root.resolve().is_relative_to(cache_folder()) and (paths.root / ADDRESS).exists()


def kept_files(paths: SweepPaths) -> Iterator[Path]:
    """Yield a copy's files of predictions."""
    return (paths.tables.resolve() / KEPT).glob("c*.parquet")


def fetch_changed(store: Store, wanted: Mapping[Path, tuple[str, Entry]]) -> None:
    """Download the objects whose files are missing or outdated. Raises StoreError.

    Args:
        store: Store of the sweep.
        wanted: File → name and listing entry of its object.
    """
    stale = {path: name for path, (name, entry) in wanted.items() if not is_current(path, entry)}
    size = sum(wanted[path][1].size for path in stale)
    if size >= LARGE:
        _log.warning("fetching %d files, %.1f GB, from %s", len(stale), size / 1e9, store.uri)
    store.download_all({name: path for path, name in stale.items()})
    for path in stale:
        # Missing if a running sweep removed the object since the listing. The time marks the file as current.
        if path.exists():
            os.utime(path, ns=(wanted[path][1].written, wanted[path][1].written))


def is_current(path: Path, entry: Entry) -> bool:
    """Return whether a file has the size and time of its object."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return status.st_size == entry.size and status.st_mtime_ns == entry.written


def ask_to_stop(name: str, output: str | Path) -> str:
    """Ask a sweep to stop; return a sentence that names the process.

    Raises SweeperError if no process runs it.
    """
    name, output = split_name(name, output)
    place = place_of(output, READING)
    paths, store = place.find(name), place.store.child(name) if place.store is not None else None
    driver = holder(paths.lease, store)
    if driver is None:
        where = f"--output {place.address}"
        raise SweeperError(f"the sweep {name!r} is not running", f"see `sweeper status {name} {where}`")
    if store is None:
        refuse_odd_files(paths)  # the marker could be a link to a file elsewhere
        paths.stop_marker.touch()
    else:
        store.put(STOP, b"")
    return f"asked process {driver.get('pid')} on {driver.get('host')} to stop {name}"

"""Folders here that are copies of sweeps in a store: what is fetched at once, and what only when somebody reads it.

A copy lies in the cache and carries its address in a file; elsewhere that file means nothing, since a stranger's
folder must not say from where this machine fetches what.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from sweeper.core.ids import SweepPaths
from sweeper.core.user_cache import cache_folder
from sweeper.storage.kept_tables import KEPT, kept_file, trial_of
from trainables.files.atomic import write_text
from trainables.files.stores.base import Entry
from trainables.files.stores.object_store import Store

ADDRESS = ".store"
"""The file with the address. No object becomes one of that name."""

LARGE = 2**30
"""Size in bytes from which a fetch is announced."""

_log = logging.getLogger("sweeper.storage")


def remember_address(root: Path, store: Store) -> None:
    """Let readers of the copy in `root` fetch the rest of it from `store`."""
    write_text(root / ADDRESS, store.uri)


def bring_predictions(paths: SweepPaths, trials: Collection[str] | None = None) -> None:
    """Fetch the predictions that a copy of a sweep lacks, so that they can be read here; elsewhere they are there.

    Args:
        paths: of the copy.
        trials: whose predictions are read; those of all trials by default.

    Raises StoreError when the store cannot be read.
    """
    store = _store_of(paths.root)
    if store is None or not (trials is None or trials):
        return
    folder = paths.tables.resolve()
    wanted: dict[Path, tuple[str, Entry]] = {}
    for table in KEPT:
        for name, entry in store.entries(f"tables/{table}", recursive=False).items():
            file = kept_file(name)
            if file is not None and (trials is None or trial_of(file[1]) in (None, *trials)):
                wanted[folder / table / file[1]] = (name, entry)
    if trials is None:
        for path in {*kept_files(paths)} - wanted.keys():
            path.unlink(missing_ok=True)
    fetch_changed(store, wanted)


def kept_files(paths: SweepPaths) -> Iterator[Path]:
    """Yield the files that a copy has of the tables that it fetches last."""
    for table in KEPT:
        yield from (paths.tables.resolve() / table).glob("c*.parquet")


def fetch_changed(store: Store, wanted: Mapping[Path, tuple[str, Entry]]) -> None:
    """Fetch the objects that are not here as they are in the store; each file has its object's time. Raises StoreError.

    Args:
        store: of the sweep.
        wanted: file → the object's name, and what a listing says of it.
    """
    stale = {path: name for path, (name, entry) in wanted.items() if not is_current(path, entry)}
    size = sum(wanted[path][1].size for path in stale)
    if size >= LARGE:
        _log.warning("fetching %d files, %.1f GB, from %s", len(stale), size / 1e9, store.uri)
    store.download_all({name: path for path, name in stale.items()})
    for path in stale:
        # Gone since the listing: a sweep that is being written replaces nothing but whole files.
        if path.exists():
            os.utime(path, ns=(wanted[path][1].written, wanted[path][1].written))


def is_current(path: Path, entry: Entry) -> bool:
    """Return whether a file is as the object that it was fetched from."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return found.st_size == entry.size and found.st_mtime_ns == entry.written


def _store_of(root: Path) -> Store | None:
    """Return the store that a folder is a copy of; `None` where it is none."""
    if not root.resolve().is_relative_to(cache_folder()):
        return None
    try:
        return Store((root / ADDRESS).read_text("utf-8"))
    except FileNotFoundError:
        return None

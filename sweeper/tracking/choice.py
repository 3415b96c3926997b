"""The tracker of a sweep: chosen when it starts, kept in its manifest, and used by every later command.

The manifest has its address without secrets, `default` for the file that all sweeps of a folder share, or `none`.
A command's own `--tracking-uri` or `--no-mlflow` counts for that command only.
"""

from __future__ import annotations

import os
from pathlib import Path

from sweeper.core.display import redact
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.storage.metadata import TRACKER, read_manifest
from sweeper.storage.places import DRIVING, place_of
from sweeper.tracking.base import kind_of

#: MLflow's own environment variable, which names the tracker of new sweeps.
VARIABLE = "MLFLOW_TRACKING_URI"

#: Values of the manifest; an address has a colon.
NONE, DEFAULT = "none", "default"

#: In place of an address: the tracker that the sweep's manifest names.
KEPT = "kept"

#: Addresses that mean files, whose paths are made absolute: later commands may run in another directory.
_SQLITE = "sqlite:///"
_FILES = (_SQLITE, "tensorboard:")


def default_address(output: Path) -> str:
    """Return the local MLflow store of the sweeps below `output`: one SQLite file."""
    return f"{_SQLITE}{(output / 'mlflow.db').resolve()}"


def checked(address: str) -> str:
    """Return a tracker's address; paths in it become absolute. Raises SweeperError if it is not valid."""
    fault = kind_of(address).fault(address)
    if fault is not None:
        raise SweeperError(*fault)
    for scheme in _FILES:
        place = address.removeprefix(scheme)
        if place not in (address, "", ":memory:"):
            return f"{scheme}{Path(place).expanduser().absolute()}"
    return address


def tracker_for(output: str, address: str | None = None) -> str | None:
    """Return the tracker of a new sweep: `address`, else MLFLOW_TRACKING_URI, else the default of its folder.

    A sweep in a store has no default tracker.
    """
    address = address or os.environ.get(VARIABLE)
    place = place_of(output, DRIVING)
    if address is None:
        return None if place.store is not None else default_address(place.folder)
    beside = kind_of(address).beside_sweep(address)
    if place.store is not None and beside is not None:
        raise SweeperError(f"{address} means a folder beside the sweep, which is in a store", beside)
    return checked(address)


def manifest_entry(tracker: str | None, folder: Path) -> dict[str, str]:
    """Return the entry of a new sweep's manifest; `folder` holds the sweep."""
    kept = NONE if tracker is None else DEFAULT if tracker == default_address(folder) else redact(tracker)
    return {TRACKER: kept}


def kept_tracker(paths: SweepPaths) -> str | None:
    """Return the tracker with which a sweep was started; `None` if there was none.

    Raises SweeperError if its address contains a secret, which is not kept, and MLFLOW_TRACKING_URI does not repeat it.
    """
    kept = read_manifest(paths.manifest, unknown_if_damaged=True).get(TRACKER, NONE)
    given = os.environ.get(VARIABLE, "")
    if kept == redact(given):
        kept = given
    if redact(kept) != kept or "***" not in kept:
        return None if kept == NONE else default_address(paths.root.parent) if kept == DEFAULT else checked(kept)
    raise SweeperError(
        f"the sweep {paths.name!r} is tracked at {kept}, whose secrets are not stored",
        f"give the whole address with --tracking-uri or {VARIABLE}, or pass --no-mlflow",
    )


def tracker_of(paths: SweepPaths, address: str | None = None) -> str:
    """Return where a sweep's runs are: `address`, else its own tracker, else that of a new sweep beside it."""
    if address is not None:
        return checked(address)
    return kept_tracker(paths) or tracker_beside(paths.root.parent)


def mlflow_of(paths: SweepPaths, address: str | None = None) -> str:
    """Return `tracker_of`. Raises SweeperError if it is not an MLflow store."""
    tracker = tracker_of(paths, address)
    if kind_of(tracker) is kind_of(default_address(paths.root.parent)):
        return tracker
    raise SweeperError(
        f"the runs of {paths.name!r} are in {kind_of(tracker).name}, not in MLflow",
        f"name an MLflow store with --tracking-uri; `sweeper manage sync {paths.in_commands}` with it logs them there",
    )


def tracker_beside(folder: Path, address: str | None = None) -> str:
    """Return the tracker of new sweeps in a folder of this machine."""
    address = address or os.environ.get(VARIABLE)
    return default_address(folder) if address is None else checked(address)

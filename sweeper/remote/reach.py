"""Access to sweeps here, in a store or on a remote cluster, for commands and functions."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.core.errors import SweeperError
from trainables.worker.object_store import is_store_address

if TYPE_CHECKING:
    from sweeper.remote.cluster import Cluster

TRACKING_SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks", "databricks-uc")
"""The kinds of stores that MLflow 3 has built in; others register themselves."""

TRACKING_PLUGINS = "mlflow.tracking_store"


def connect(address: str) -> Cluster:
    """Return the cluster at `address`. Raises SweeperError when it does not answer, or refuses the token."""
    # Importing Ray takes a second that commands on local sweeps save.
    from sweeper.remote.cluster import Cluster

    return Cluster(address)


def remote_output(name: str, output: str, address: str | None) -> tuple[str, str]:
    """Return a sweep's name and where its results are: as given, or as the cluster at `address` reports."""
    if address is None or is_store_address(name):
        return name, output
    sweep = connect(address).sweep(name)
    return sweep.name, sweep.output


def here(name: str, output: str, *, tables: bool = True) -> tuple[str, Path]:
    """Return the name and the folder under which a sweep can be read on this machine; from a store it is fetched."""
    from sweeper.storage.places import local_copy

    return local_copy(name, output, tables=tables)


def all_here(names: list[str], output: str, address: str | None = None) -> tuple[list[str], Path]:
    """Return the names, or paths, of several sweeps that can be read on this machine, and a folder of theirs."""
    copies = [here(*remote_output(name, output, address)) for name in names]
    folder = copies[0][1]
    return [name if own == folder else str(own / name) for name, own in copies], folder


def checked(uri: str | None) -> str | None:
    """Return the address of MLflow's store, if it can be one. Raises SweeperError for a scheme that nobody serves."""
    scheme, found, _ = (uri or "").partition("://")
    kind = scheme.partition("+")[0]  # `mysql+pymysql`: the database, and who talks to it
    if not found or kind in TRACKING_SCHEMES or scheme in {each.name for each in entry_points(group=TRACKING_PLUGINS)}:
        return uri
    raise SweeperError(
        f"{scheme}:// is not an MLflow tracking store",
        f"use one of {', '.join(f'{each}://' for each in TRACKING_SCHEMES)}, or --no-mlflow",
    )


def local_tracking(uri: str | None, folder: Path) -> str:
    """Return MLflow's store: the one that was named, or a file in `folder`."""
    from sweeper.tracking.follower import default_tracking_uri

    return checked(uri) or default_tracking_uri(folder)


def tracking(uri: str | None, output: str, name: str | None = None) -> str | None:
    """Return MLflow's store: the one that was named, or a file next to the sweeps; none beside those in a store."""
    from sweeper.storage.places import DRIVING, place_of
    from sweeper.tracking.follower import default_tracking_uri

    place = place_of(output, DRIVING)
    if uri is not None or place.store is not None:
        return checked(uri)
    return default_tracking_uri(place.find(name).root.parent if name is not None else place.folder)

"""Access to sweeps here, in a store or on a remote cluster, for commands and functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainables.worker.object_store import is_store_address

if TYPE_CHECKING:
    from sweeper.remote.cluster import Cluster


def connect(address: str) -> Cluster:
    """Return the cluster at `address`. Raises SweeperError when it does not answer, or refuses the token."""
    # Importing Ray takes a second that commands on local sweeps save.
    from sweeper.remote.cluster import Cluster

    return Cluster(address)


def remote_output(name: str, output: str, address: str | None) -> tuple[str, str]:
    """Return a sweep's name and where its results are: as given, or as the cluster at `address` tells."""
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


def local_tracking(uri: str | None, folder: Path) -> str:
    """Return MLflow's store: the one that was named, or a file in `folder`."""
    from sweeper.tracking.follower import default_tracking_uri

    return uri or default_tracking_uri(folder)


def tracking(uri: str | None, output: str, name: str | None = None) -> str | None:
    """Return MLflow's store: the one that was named, or a file next to the sweeps; none beside those in a store."""
    from sweeper.storage.places import DRIVING, place_of
    from sweeper.tracking.follower import default_tracking_uri

    place = place_of(output, DRIVING)
    if uri is not None or place.store is not None:
        return uri
    return default_tracking_uri(place.find(name).root.parent if name is not None else place.folder)

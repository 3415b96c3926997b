"""Access to sweeps here, in a store or on a remote cluster, for commands and functions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.core.errors import SweeperError
from trainables.files.stores.base import is_store_address

if TYPE_CHECKING:
    from sweeper.remote.cluster import Cluster


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


def local_sweep(name: str, output: str, *, tables: bool = True) -> tuple[str, Path]:
    """Return the name and the folder under which a sweep can be read on this machine; from a store it is fetched."""
    from sweeper.storage.places import local_copy

    return local_copy(name, output, tables=tables)


def all_here(names: list[str], output: str, address: str | None = None) -> tuple[list[str], Path]:
    """Return the names, or paths, of several sweeps that can be read on this machine, and a folder of theirs."""
    copies = [local_sweep(*remote_output(name, output, address)) for name in names]
    folder = copies[0][1]
    return [name if own == folder else str(own / name) for name, own in copies], folder


def checked(address: str | None) -> str | None:
    """Return the address of a tracker, if it can be one. Raises SweeperError where it cannot."""
    from sweeper.tracking.base import kind_of

    fault = kind_of(address).fault(address) if address is not None else None
    if fault is not None:
        raise SweeperError(*fault)
    return address


def local_tracking(address: str | None, folder: Path) -> str:
    """Return the tracker that was named, or the default one of the sweeps in `folder`."""
    from sweeper.tracking.base import default_address

    return checked(address) or default_address(folder)


def tracking(address: str | None, output: str, name: str | None = None) -> str | None:
    """Return the tracker that was named, or the default one of sweeps on this machine; none for those in a store."""
    from sweeper.storage.places import DRIVING, place_of
    from sweeper.tracking.base import default_address

    place = place_of(output, DRIVING)
    if place.store is not None and address is not None and address.endswith(":"):
        raise SweeperError(f"{address} means a folder beside the sweep, which is in a store", f"write {address}/folder")
    if address is not None or place.store is not None:
        return checked(address)
    return default_address(place.find(name).root.parent if name is not None else place.folder)

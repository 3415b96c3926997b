"""Asking a running sweep to stop: a marker in its folder, or an object in its store, that its driver looks for."""

from __future__ import annotations

from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.storage.lease import holder
from sweeper.storage.lookup import refuse_links
from sweeper.storage.mirror import STOP
from sweeper.storage.places import READING, place_of, split_name
from sweeper.storage.store_lease import stored_holder


def ask_to_stop(name: str, output: str | Path) -> str:
    """Leave the wish that a sweep stop; return, in a sentence, who was asked.

    Raises SweeperError when nobody runs it.
    """
    name, output = split_name(name, output)
    place = place_of(output, READING)
    paths, store = place.find(name), place.store.child(name) if place.store is not None else None
    driver = holder(paths.lease) if store is None else stored_holder(store)
    if driver is None:
        where = f"--output {place.address}"
        raise SweeperError(f"the sweep {name!r} is not running", f"see `sweeper status {name} {where}`")
    if store is None:
        refuse_links(paths)
        paths.stop_marker.touch()
    else:
        store.put(STOP, b"")
    return f"asked process {driver.get('pid')} on {driver.get('host')} to stop {name}"

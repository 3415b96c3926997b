"""The log of a sweep in a results folder, or in a store: read once, or followed while its driver runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from sweeper.storage.lease import holder
from sweeper.storage.lookup import find_sweep
from sweeper.storage.places import READING, local_copy, place_of, split_name
from sweeper.storage.store_lease import stored_holder

LOOK_SECONDS = 1.0


def local_log(name: str, output: str, *, follow: bool, sleep: Callable[[float], None] = time.sleep) -> Iterator[str]:
    """Yield what a sweep's log holds, and with `follow` what is added to it until its driver has ended.

    Raises SweeperError when there is no such sweep.
    """
    last, where = split_name(name, output)
    place = place_of(where, READING)
    store = place.store.child(last) if place.store is not None else None
    seen = 0
    while True:
        paths = find_sweep(*local_copy(name, output, tables=False))
        driven = (holder(paths.lease) if store is None else stored_holder(store)) is not None
        text = paths.log.read_text(errors="replace") if paths.log.exists() else ""
        if len(text) > seen:
            yield text[seen:]
            seen = len(text)
        if not follow or not driven:
            return
        sleep(LOOK_SECONDS)

"""One driver a sweep in a store: an object that its driver writes again and again while it lives.

A store has no locks. Who finds the object watches it: if it changes, its driver is alive; if it has not changed for
`SILENCE_SECONDS`, its driver is gone. Clocks of different machines are never compared.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError
from trainables.worker.object_store import Store

OBJECT = "lease.json"

BEAT_SECONDS = 5.0

SILENCE_SECONDS = 20.0
"""Four beats: one may be late by a store's slow answer, and its client tries an unanswered request again for 6 s."""


LONG_SILENCE_SECONDS = 120.0
"""A copy of the object that is older than this is a dead driver's; clocks of machines differ by less."""


def holder_of_copy(path: Path) -> dict[str, Any] | None:
    """Return who drives a sweep in a store (`host`, `pid`), from a copy of its lease; `None` if no process does."""
    try:
        fields = json.loads(path.read_bytes())
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    return dict(fields) if age < LONG_SILENCE_SECONDS else None


def stored_holder(store: Store) -> dict[str, Any] | None:
    """Return who drives the sweep in `store` (`host`, `pid`); `None` if no process does."""
    entry, content = store.entries(recursive=False).get(OBJECT), store.get(OBJECT)
    if entry is None or content is None or time.time() - entry.written / 1e9 >= LONG_SILENCE_SECONDS:
        return None
    fields: dict[str, Any] = json.loads(content)
    return fields


class StoreLease:
    """The right to drive one sweep in a store."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to take the sweep `name`, which lies in `store`."""
        self._store, self._name, self._clock, self._sleep = store, name, clock, sleep
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._beaten = 0.0

    def take(self) -> None:
        """Take the lease, waiting until a silent holder is known to be gone.

        Raises SweeperError naming the holder when it is alive, or when another took the lease at the same moment.
        """
        seen = self._store.get(OBJECT)
        began = self._clock()
        while seen is not None and self._clock() - began < SILENCE_SECONDS:
            self._sleep(1.0)
            now = self._store.get(OBJECT)
            if now is not None and now != seen:
                raise self._taken(now)
            seen = now
        self.beat(force=True)
        mine = self._store.get(OBJECT)
        if mine is None or json.loads(mine)["token"] != self._token:
            raise self._taken(mine or b"{}")

    def beat(self, *, force: bool = False) -> None:
        """Show that the driver lives, when it is due."""
        now = self._clock()
        if not force and now - self._beaten < BEAT_SECONDS:
            return
        self._beats, self._beaten = self._beats + 1, now
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "token": self._token, "beats": self._beats}
        self._store.put(OBJECT, json.dumps(holder).encode())

    def release(self) -> None:
        """Release the lease, unless another driver has taken it meanwhile."""
        mine = self._store.get(OBJECT)
        if mine is not None and json.loads(mine)["token"] == self._token:
            self._store.delete([OBJECT])

    def _taken(self, holder: bytes) -> SweeperError:
        fields = json.loads(holder)
        return SweeperError(
            f"the sweep {self._name!r} is already being driven by process {fields.get('pid', '?')} on "
            f"{fields.get('host', '?')}",
            f"wait for it, or stop it with `sweeper stop {self._store.uri}`",
        )

"""Ends the process that fills a tracker once the sweep is over and the store has stopped answering.

A request to a server that hangs takes its client's whole timeout, and one to a database may take for ever; nobody
should wait for either when all that is left to do is what `sweeper sync` does later.

Only the time is counted in which the calling thread waits for something else than a processor. At the lowest priority
beside busy cores, two seconds of our own work, a new store's tables, take minutes: no fault of the store.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

POLL_SECONDS = 0.1

_log = logging.getLogger("sweeper.tracking")


def _seconds_waited(thread: int) -> float:
    """Return a clock that stands still while `thread` (its native id) computes or is ready to.

    Where the kernel does not tell (it is Linux that does), the clock is that of the wall.
    """
    try:
        computed, ready, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text("ascii").split()
    except (OSError, ValueError):
        return time.monotonic()
    return time.monotonic() - (int(computed) + int(ready)) * 1e-9


def _leave() -> None:
    # The main thread is in a call that does not return; what it holds (locks, connections) falls with the process.
    os._exit(1)


@dataclass(frozen=True)
class _Call:
    thread: int
    began: float
    seconds: float


class Watchdog:
    """Tracks how long a call of the store has waited for its answer, and gives up on it when the sweep has ended."""

    def __init__(self, over: Callable[[], bool], give_up: Callable[[], None] = _leave) -> None:
        """Watch from now on, in a thread that does not outlive the process.

        Args:
            over: tells whether the sweep is over; called every tenth of a second.
            give_up: what to do then with a store that does not answer.
        """
        self._over, self._give_up = over, give_up
        self._asked: _Call | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def asking(self, seconds: float) -> Iterator[None]:
        """Mark a call of the store that a healthy one answers within `seconds`."""
        thread = threading.get_native_id()
        self._asked = _Call(thread, _seconds_waited(thread), seconds)
        try:
            yield
        finally:
            self._asked = None

    def heard(self) -> None:
        """Note that the store has answered in the middle of a call that asks it for several things."""
        asked = self._asked
        if asked is not None:
            self._asked = replace(asked, began=_seconds_waited(asked.thread))

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            asked = self._asked
            if asked is None:
                continue
            waited = _seconds_waited(asked.thread) - asked.began
            if waited > asked.seconds and self._over():
                _log.warning("the sweep is over and the store has not answered for %.0f s", waited)
                self._give_up()
                return

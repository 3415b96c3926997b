"""Ends the process that fills MLflow once the sweep is over and the store has stopped answering.

A request to a server that hangs takes its client's whole timeout, and one to a database may take for ever; nobody
should wait for either when all that is left to do is what `sweeper sync` does later.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POLL_SECONDS = 0.1

_log = logging.getLogger("sweeper.mlflow")


def _leave() -> None:
    # The main thread is in a call that does not return; what it holds (locks, connections) falls with the process.
    os._exit(1)


class Watchdog:
    """Tracks how long a call of the store has been running, and gives up on it when the sweep has ended."""

    def __init__(
        self,
        over: Callable[[], bool],
        give_up: Callable[[], None] = _leave,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch from now on, in a thread that does not outlive the process.

        Args:
            over: tells whether the sweep is over; called every tenth of a second.
            give_up: what to do then with a store that does not answer.
            clock: seconds.
        """
        self._over, self._give_up, self._clock = over, give_up, clock
        self._asked: tuple[float, float] | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    @contextmanager
    def asking(self, seconds: float) -> Iterator[None]:
        """Mark a call of the store that a healthy one answers within `seconds`."""
        self._asked = self._clock(), seconds
        try:
            yield
        finally:
            self._asked = None

    def heard(self) -> None:
        """Note that the store has answered in the middle of a call that asks it for several things."""
        asked = self._asked
        if asked is not None:
            self._asked = self._clock(), asked[1]

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            asked = self._asked
            if asked is not None and self._clock() - asked[0] > asked[1] and self._over():
                _log.warning("the sweep is over and the store has not answered for %.0f s", self._clock() - asked[0])
                self._give_up()
                return

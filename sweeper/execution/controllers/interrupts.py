"""Ctrl-C: the first press ends the sweep after this epoch, the second skips what would follow."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ACKNOWLEDGED = "Stopping after this epoch; press Ctrl-C again to skip tables and report"
HURRIED = "Skipping tables and report"


class Interrupts:
    """Counts presses of Ctrl-C and answers each at once; use `listening` around what may be interrupted.

    Attributes:
        presses: so far.
    """

    def __init__(self, say: Callable[[str], object] = lambda text: None) -> None:
        """Answer through `say`."""
        self.presses = 0
        self._say = say
        self._skippable = False

    @contextmanager
    def listening(self) -> Iterator[Interrupts]:
        """Take Ctrl-C up to the end of the block; only the main thread can, elsewhere nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGINT, self._pressed)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def skippable(self) -> Iterator[None]:
        """Let the second press raise KeyboardInterrupt in the block; one that came before it does so at once."""
        self._skippable = True
        try:
            if self.presses > 1:
                raise KeyboardInterrupt
            yield
        finally:
            self._skippable = False

    def _pressed(self, number: int, frame: object) -> None:
        self.presses += 1
        self._say(ACKNOWLEDGED if self.presses == 1 else HURRIED)
        if self._skippable and self.presses > 1:
            raise KeyboardInterrupt

"""Controllers of a running sweep: asked by the driver on every turn, a controller sets what should follow.

A controller looks at the budget, at the cluster, at other sweeps or at the lease, and says in `Steering` what should
follow; only the driver acts on it. Projections (tables, trackers, metrics, notifications) take records and say nothing.

Ctrl-C is no controller, for the user is answered at once: the first press ends the sweep after this epoch, the second
skips what would follow.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol


class Controller(Protocol):
    """Something that steers."""

    def tick(self, steering: Steering) -> None:
        """Ask for what should follow. Called on every turn: look at what is slow to ask only when it is due."""


POLL_SECONDS = 0.5


class Steering:
    """What controllers, the stop marker and signals have asked for.

    Attributes:
        stop_requested: why the sweep should end at once.
        winding_down: why no trial starts any more, while those that run continue to their next rung.
        slots: how many trials run at once; `None` where nobody has said.
        yields_to: the sweep that goes first: while it is named no trial starts.
        alone: no other sweep shares the cluster.
        wants_more: the driver has trials that it would start if there were room.
        running: how many assignments have begun.
    """

    def __init__(self, controllers: Sequence[Controller], marker: Path, clock: Callable[[], float]) -> None:
        """Begin with nothing asked for.

        Args:
            controllers: are asked on every turn what should follow.
            marker: a file that asks for the end by being there.
            clock: seconds, for looking for it now and then.
        """
        self._controllers, self._marker, self._clock = controllers, marker, clock
        self._polled = -math.inf
        self.stop_requested: str | None = None
        self.winding_down: str | None = None
        self.slots: int | None = None
        self.yields_to: str | None = None
        self.alone = True
        self.wants_more, self.running = False, 0

    @property
    def closing(self) -> str | None:
        """Why no trial starts any more: the sweep was asked to stop, or its budget is exhausted."""
        return self.stop_requested or self.winding_down

    def ask_to_stop(self, reason: str | None) -> None:
        """Let the sweep end, for this reason or an earlier one."""
        self.stop_requested = self.stop_requested or reason

    def follow(self, *, wants_more: bool, running: int) -> None:
        """Let the controllers ask for what should follow, given whether the driver wants more and what runs."""
        self.wants_more, self.running = wants_more, running
        for controller in self._controllers:
            controller.tick(self)

    def should_stop(self) -> bool:
        """Return whether the sweep was asked to stop, by its marker or otherwise."""
        now = self._clock()
        if self.stop_requested is None and now - self._polled >= POLL_SECONDS:
            self._polled = now
            if self._marker.exists():
                self.stop_requested = "`sweeper stop` was called"
        return self.stop_requested is not None


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

"""Several sweeps on one cluster: each driver publishes its priority and whether it has trials waiting.

A sweep starts no trial while one of higher priority has trials waiting for room. Trials that run go on, and so do those
that it has asked the cluster for already: one at a time while there are other sweeps. Between equals the cluster
serves whoever asked first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sweeper.execution.controllers.base import Directive, Situation

TELL_SECONDS = 2.0

SILENCE_SECONDS = 15.0
"""A sweep that has published nothing for so long has no driver any more and is ignored."""


class Board(Protocol):
    """Where drivers of one cluster leave word for each other, a text under each sweep's name."""

    def write(self, name: str, text: str) -> None:
        """Leave `text` under `name`."""

    def read(self) -> Mapping[str, str]:
        """Return all texts by name."""

    def remove(self, name: str) -> None:
        """Take the text under `name` away."""


class PriorityController:
    """Speaks and listens every few seconds."""

    def __init__(
        self,
        name: str,
        priority: int,
        board: Board,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to speak for the sweep `name`; `tell` shows a sentence to the user."""
        self._name, self._priority, self._board, self._tell, self._clock = name, priority, board, tell, clock
        self._turn = 0
        self._spoken = -TELL_SECONDS
        self._heard: dict[str, tuple[str, float]] = {}
        self._now = Directive()

    def tick(self, situation: Situation) -> Directive:
        """Speak and listen, when it is due; ask to yield while a sweep of higher priority has trials waiting."""
        now = self._clock()
        if now - self._spoken < TELL_SECONDS:
            return self._now
        self._spoken = now
        self._turn += 1
        word = {"priority": self._priority, "waiting": situation.wants_more, "turn": self._turn}
        self._board.write(self._name, json.dumps(word))
        others = self._living(now)
        higher = [name for name, word in others.items() if word["waiting"] and word["priority"] > self._priority]
        before, self._now = self._now, Directive(yields_to=min(higher, default=None), alone=not others)
        if self._now.yields_to is not None and self._now.yields_to != before.yields_to:
            self._tell(f"starting no trials while {self._now.yields_to}, of higher priority, has some waiting")
        return self._now

    def leave(self) -> None:
        """Say no more."""
        self._board.remove(self._name)

    def _living(self, now: float) -> dict[str, dict[str, Any]]:
        """Return what the others say, without those who have been silent: whose word has not changed for long."""
        said = {name: text for name, text in self._board.read().items() if name != self._name}
        self._heard = {
            name: self._heard[name] if name in self._heard and self._heard[name][0] == text else (text, now)
            for name, text in said.items()
        }
        return {name: json.loads(text) for name, (text, since) in self._heard.items() if now - since < SILENCE_SECONDS}

"""Starts of trials' processes, until a record tells of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

START_SECONDS = 1.0
"""A process that reports within this time needs no record of its start: the report tells it, for half the writing."""


class Starts:
    """The processes that have begun and have neither a record of that nor a report."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none; `clock` gives seconds."""
        self._clock = clock
        self._began: dict[int, float] = {}

    def begin(self, configurations: Sequence[int]) -> None:
        """Note that a process has begun with these configurations."""
        self._began.update(dict.fromkeys(configurations, self._clock()))

    def take(self, configuration: int) -> bool:
        """Take a configuration off; return whether it was here: whether its start was recorded by nothing."""
        return self._began.pop(configuration, None) is not None

    def due(self) -> list[int]:
        """Return the configurations whose start needs a record by now."""
        latest = self._clock() - START_SECONDS
        return [configuration for configuration, began in self._began.items() if began <= latest]

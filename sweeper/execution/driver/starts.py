"""Trial processes that have started and are not in the journal yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

START_SECONDS = 1.0
"""A process that reports within this time needs no record of its start: the report shows it, for half the writing."""


class Starts:
    """The configurations whose process has started without a record of that, or a report, so far."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none; `clock` gives seconds."""
        self._clock = clock
        self._began: dict[int, float] = {}

    def begin(self, configurations: Sequence[int]) -> None:
        """Note that a process has begun with these configurations."""
        self._began.update(dict.fromkeys(configurations, self._clock()))

    def take(self, configuration: int) -> bool:
        """Remove a configuration; return whether its start had no record."""
        return self._began.pop(configuration, None) is not None

    def due(self) -> list[int]:
        """Return the configurations whose start needs a record by now."""
        latest = self._clock() - START_SECONDS
        return [configuration for configuration, began in self._began.items() if began <= latest]

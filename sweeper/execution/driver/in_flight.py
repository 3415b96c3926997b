"""Assignments in flight, given to running processes or reserved for some, and starts that the journal lacks so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


class InFlight:
    """Counts assignments from when they are given out until they are over, against this sweep's limit."""

    def __init__(self, limit: int | None) -> None:
        """Allow `limit` at once, `None` for any number."""
        self._limit = limit
        self._all: set[tuple[int, ...]] = set()
        self._begun: set[tuple[int, ...]] = set()

    def __contains__(self, assignment: Sequence[int]) -> bool:
        """Return whether an assignment is given out and not over."""
        return tuple(assignment) in self._all

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Yield the assignments that are given out and not over."""
        return iter(self._all)

    def __len__(self) -> int:
        """Return how many are given out."""
        return len(self._all)

    @property
    def ahead(self) -> int:
        """How many of them no process has begun yet."""
        return len(self._all - self._begun)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and len(self._all) >= self._limit

    def add(self, assignment: Sequence[int]) -> None:
        """Give an assignment out."""
        self._all.add(tuple(assignment))

    def begin(self, assignment: Sequence[int]) -> None:
        """Record that a process has begun with an assignment."""
        self._begun.add(tuple(assignment))

    def retire(self, assignment: Sequence[int]) -> None:
        """Take an assignment off: it is over, or its process has died."""
        self._all.discard(tuple(assignment))
        self._begun.discard(tuple(assignment))


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

"""Assignments in flight: given to running processes, or reserved for processes that will start."""

from __future__ import annotations

from collections.abc import Sequence


class GivenOut:
    """Counts assignments from when they are given out until they are over, against this sweep's limit."""

    def __init__(self, limit: int | None) -> None:
        """Allow `limit` at once, `None` for any number."""
        self._limit = limit
        self._all: set[tuple[int, ...]] = set()
        self._begun: set[tuple[int, ...]] = set()

    def __contains__(self, assignment: Sequence[int]) -> bool:
        """Return whether an assignment is given out and not over."""
        return tuple(assignment) in self._all

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

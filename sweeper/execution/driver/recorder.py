"""The recorder: the only way into the journal, which then updates state and sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sweeper.journal.journal import Journal
from sweeper.journal.records import Body, Record


class Sink(Protocol):
    """Where records go after the journal."""

    def append(self, record: Record) -> None:
        """Take one record in."""

    def flush_if_due(self) -> None:
        """Make what was taken in visible, when it is due."""


class Fold(Protocol):
    """What a journal adds up to for somebody: the state, the rungs, a searcher's knowledge, the time worked."""

    def apply(self, record: Record) -> None:
        """Take one record in; records come in order."""


class Recorder:
    """Journals, and folds each record into the state, the rungs, the searcher's knowledge and the sinks."""

    def __init__(self, journal: Journal, folds: Sequence[Fold], sinks: Sequence[Sink]) -> None:
        """Record into `journal`, which is open for appending; the folds know it so far."""
        self._journal, self._folds, self._sinks = journal, folds, sinks

    def record(self, body: Body) -> None:
        """Journal one record and let everything follow that follows from it."""
        record = self._journal.append(body)
        for fold in self._folds:
            fold.apply(record)
        for sink in self._sinks:
            sink.append(record)

    def settle(self) -> None:
        """Make every record so far durable."""
        self._journal.settle()

    def flush(self) -> None:
        """Make every record so far durable, and let the sinks show them."""
        self._journal.settle()
        for sink in self._sinks:
            sink.flush_if_due()

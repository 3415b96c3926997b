"""The configurations of a sweep whose searcher learns: those that have been suggested, as the journal has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sweeper.journal.journal import read_kind
from sweeper.journal.records import Suggested
from sweeper.space.configurations import ByIndex, Configurations
from sweeper.space.domains.choices import Configuration
from sweeper.space.spec import SweepSpec


class SuggestedConfigurations(ByIndex):
    """All configurations of a sweep, of which only those in `suggested` are known."""

    def __init__(self, count: int, suggested: Mapping[int, Configuration]) -> None:
        """Give out what `suggested` has by then, of `count` in all."""
        self._count, self._suggested = count, suggested

    def __len__(self) -> int:
        return self._count

    def _at(self, index: int) -> Configuration:
        if index not in self._suggested:
            # No IndexError, which would end an iteration as if there were no more.
            raise LookupError(f"configuration {index} has not been suggested yet")
        return self._suggested[index]

    def known(self, index: int) -> bool:
        """Return whether configuration `index` has been suggested."""
        return index in self._suggested


class JournaledSuggestions(Mapping[int, Configuration]):
    """The suggestions in a journal, which may grow: it is read when one is asked for that is not known yet."""

    def __init__(self, folder: Path) -> None:
        """Read the journal in `folder`, when asked. Raises SweeperError then if a record is damaged."""
        self._folder = folder
        self._found: dict[int, Configuration] = {}
        self._newest = -1

    def __getitem__(self, index: int) -> Configuration:
        if index not in self._found:
            self._read()
        return self._found[index]

    def __iter__(self) -> Iterator[int]:
        self._read()
        return iter([*self._found])

    def __len__(self) -> int:
        self._read()
        return len(self._found)

    def _read(self) -> None:
        for record in read_kind(self._folder, Suggested, after=self._newest):
            if isinstance(record.body, Suggested):
                self._found[record.body.configuration] = record.body.values
            self._newest = record.sequence


def configurations_of(
    spec: SweepSpec, suggested: Mapping[int, Configuration]
) -> Configurations | SuggestedConfigurations:
    """Return a sweep's configurations: drawn where they follow from the space, else those that were suggested."""
    drawn = Configurations(spec)
    return SuggestedConfigurations(len(drawn), suggested) if spec.searcher.learns else drawn

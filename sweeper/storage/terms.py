"""Terms: who may write a sweep's journal in a store, and from which record on.

A store has no locks, and a driver that was paused for a minute wakes up and writes. So each driver has a term: a
prefix of its own for its records, and an object that is made once, `terms/00002.json`, which says whose the prefix is
and how many records of the terms before it count. What an earlier driver still writes lies beyond that number: it is
set aside where it is, and nobody reads it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.errors import SweeperError

TERMS, JOURNAL = "terms", "journal"

UNORDERED = 64
"""Records that release 0.1 put at the same time, each an object: gaps of its dead drivers reach no further back."""

_TERM = re.compile(rf"{TERMS}/(\d{{5}})\.json")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_SINGLE = re.compile(rf"{JOURNAL}/(\d{{10}})-[a-z]+(-c\d+)?(-e\d+)?\.json")
_GROUP = re.compile(rf"{JOURNAL}/(\d{{5}}-[0-9a-f]{{16}})/(\d{{10}})-(\d{{10}})\.records")


@dataclass(frozen=True)
class Term:
    """One driver's right to write the journal.

    Attributes:
        number: counted from 1; a higher one ends all lower ones.
        token: tells the drivers apart that want the same number.
        after: how many records count that were written before it.
    """

    number: int
    token: str
    after: int

    @property
    def object_name(self) -> str:
        """The object that stores it."""
        return f"{TERMS}/{self.number:05d}.json"

    def group_name(self, first: int, last: int) -> str:
        """Return the object of the records `first` to `last`, put under this term."""
        return f"{JOURNAL}/{self.number:05d}-{self.token}/{first:010d}-{last:010d}.records"

    def to_bytes(self) -> bytes:
        """Return the object's content."""
        return json.dumps({"term": self.number, "token": self.token, "after": self.after}).encode()

    @staticmethod
    def from_bytes(name: str, content: bytes) -> Term:
        """Read the object `name`. Raises SweeperError when it is none."""
        try:
            fields = json.loads(content)
            term = Term(int(fields["term"]), str(fields["token"]), int(fields["after"]))
            if term.object_name != name or not _TOKEN.fullmatch(term.token) or term.after < 0:
                raise ValueError("its fields do not fit its name")
        except (ValueError, KeyError, TypeError) as error:
            raise SweeperError(
                f"the object {name} of the sweep's store is damaged: {error}",
                "restore it from a backup: it says which journal records count",
            ) from error
        return term


@dataclass(frozen=True)
class Part:
    """Journal records that count and share one object.

    Attributes:
        name: of the object.
        begins: the number of the object's first record.
        first: the first record of the object that counts.
        last: the last one.
    """

    name: str
    begins: int
    first: int
    last: int


def term_names(names: Iterable[str]) -> list[str]:
    """Return those of a store's objects that are terms, in their order."""
    return sorted(name for name in names if _TERM.fullmatch(name))


def settled(terms: Sequence[Term], names: Iterable[str]) -> list[Part]:
    """Return the parts of the journal that count, in order, given all terms and all of a store's objects.

    Records that are missing between others leave a gap for the reader to complain about.
    """
    ordered = sorted(terms, key=lambda term: term.number)
    groups = _groups(names)
    parts: list[Part] = []
    for place, prefix in enumerate(["", *(f"{term.number:05d}-{term.token}" for term in ordered)]):
        # A later term may begin further back than the one before it: where damaged records were discarded.
        limit = min((term.after for term in ordered[place:]), default=math.inf)
        expected = ordered[place - 1].after if place else 0
        found = groups.get(prefix, [])
        if not place and not ordered:
            found = _without_unsettled(found)
        for begins, last, name in sorted(found, key=lambda group: (group[0], -group[1])):
            if last < expected or begins >= limit:
                continue
            ends = last if limit == math.inf else min(last, int(limit) - 1)
            parts.append(Part(name, begins, max(begins, expected), ends))
            expected = ends + 1
    return parts


def count_of(terms: Sequence[Term], parts: Sequence[Part]) -> int:
    """Return how many records count."""
    begun = max(terms, key=lambda term: term.number).after if terms else 0
    return max(begun, parts[-1].last + 1 if parts else 0)


def _groups(names: Iterable[str]) -> Mapping[str, list[tuple[int, int, str]]]:
    """Return the journal's objects by the prefix of their term; those of release 0.1 have none."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for name in names:
        if match := _GROUP.fullmatch(name):
            found.setdefault(match[1], []).append((int(match[2]), int(match[3]), name))
        elif match := _SINGLE.fullmatch(name):
            found.setdefault("", []).append((int(match[1]), int(match[1]), name))
    return found


def _without_unsettled(found: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Leave out what a driver of release 0.1 was putting when it died: those after a gap, if they are few.

    Where they are many, a record was lost otherwise.
    """
    ordered = sorted(found)
    gap = next((place for place, (begins, *_) in enumerate(ordered) if begins != place), len(ordered))
    beyond = ordered[-1][0] - gap if ordered else 0
    return ordered if beyond >= UNORDERED else ordered[:gap]

"""The files of a journal: one a record for the newest ones, and closed segments of a thousand for all before them.

A record begins as a file of its own, which is what makes it durable at once. From time to time the writer joins those
that are settled into a segment: it is written whole, under its own name, before the first of its records' files goes.
So every record is in at least one file at every moment, and where one is in two, the segment counts. A reader that
finds a file gone lists the folder again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from trainables.files.regular import read_bytes

#: Records a segment: 800,000 records are then 800 files, each of a few MB.
SEALED = 1000

#: So often a folder is listed again without anything new in it, while a reader waits for files to be joined.
LISTINGS = 5

#: Before a file that is listed and not there is looked for again: a network file system may list what was there.
PAUSE_SECONDS = 0.5

_SINGLE = re.compile(r"(\d{10})-[a-z]+(-c\d+)?(-e\d+)?\.json")
_SEGMENT = re.compile(r"(\d{10})-(\d{10})\.records")


@dataclass(frozen=True)
class Piece:
    """A file with the records `first` to `last`."""

    first: int
    last: int
    name: str

    @property
    def sealed(self) -> bool:
        """Whether it is a segment."""
        return self.name.endswith(".records")


@dataclass(frozen=True)
class Content:
    """The bytes of one record, and the file that they are from; `sealed` where that is a segment."""

    sequence: int
    file: str
    data: bytes
    sealed: bool = False


class GapError(Exception):
    """A record is missing between others, or there are two of one number.

    Attributes:
        file: what is there instead.
        expected: the number.
    """

    def __init__(self, file: str, expected: int) -> None:
        super().__init__(file, expected)
        self.file, self.expected = file, expected


def segment_name(first: int, last: int) -> str:
    """Return the name of the segment with these records."""
    return f"{first:010d}-{last:010d}.records"


def piece_of(name: str) -> Piece | None:
    """Return what a file holds, by its name; `None` for one that is none of a journal's."""
    if match := _SINGLE.fullmatch(name):
        return Piece(int(match[1]), int(match[1]), name)
    if match := _SEGMENT.fullmatch(name):
        return Piece(int(match[1]), int(match[2]), name) if match[1] <= match[2] else None
    return None


def pieces(folder: Path) -> list[Piece]:
    """Return the files that together are the journal in `folder`, in order; without those that a segment covers."""
    names = (
        [entry.name for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)] if folder.is_dir() else []
    )  # no pipe
    found = [piece for piece in map(piece_of, names) if piece]
    kept: list[Piece] = []
    for piece in sorted(found, key=lambda each: (each.first, -each.last, each.name)):
        if not (kept and kept[-1].sealed and piece.last <= kept[-1].last):
            kept.append(piece)
    return kept


def last_sequence(folder: Path) -> int:
    """Return the number of the newest record in `folder`; -1 where there is none."""
    return max((piece.last for piece in pieces(folder)), default=-1)


def contents(folder: Path, after: int = -1) -> Iterator[Content]:
    """Yield the records above `after`, in order, unchecked. Raises GapError where one is missing."""
    expected, patience = after + 1, LISTINGS
    while True:
        begun, vanished = expected, False
        gap: GapError | None = None
        for piece in pieces(folder):
            if piece.last < begun:
                continue
            if piece.last < expected:
                raise GapError(piece.name, expected)  # two of one number
            if piece.first > expected:
                gap = GapError(piece.name, expected)
                break
            try:
                data = read_bytes(folder / piece.name)
            except FileNotFoundError:
                gap, vanished = GapError(piece.name, expected), True
                break
            for content in split(piece, data, expected):
                yield content
                expected = content.sequence + 1
        if gap is None:
            return
        # Joined while it was read, perhaps: then another listing has the segment.
        patience = LISTINGS if expected > begun else patience - 1
        if not patience:
            raise gap
        if vanished and expected == begun:
            time.sleep(PAUSE_SECONDS)


def split(piece: Piece, data: bytes, begin: int = 0) -> Iterator[Content]:
    """Yield the records of a file from number `begin` on; where the file is cut off, empty ones."""
    if not piece.sealed:
        yield Content(piece.first, piece.name, data)
        return
    lines = data.split(b"\n")
    for sequence in range(max(piece.first, begin), piece.last + 1):
        place = 2 * (sequence - piece.first)
        yield Content(sequence, piece.name, b"\n".join(lines[place : place + 2]), sealed=True)


def joined(records: Sequence[bytes]) -> bytes:
    """Return the content of a segment, given each record's two lines."""
    return b"\n".join(records) + b"\n"


def covered(folder: Path) -> list[str]:
    """Return the files whose records are all in a segment: who joined them was killed before it removed them."""
    kept = {piece.name for piece in pieces(folder)}
    return [name for name in os.listdir(folder) if piece_of(name) is not None and name not in kept]


def trailing_singles(folder: Path) -> list[Piece]:
    """Return the files of one record each, without gaps, that follow the last segment."""
    found = [piece for piece in pieces(folder) if piece.first == piece.last]
    gaps = [place for place, (one, other) in enumerate(pairwise(found), 1) if other.first != one.first + 1]
    return found[gaps[-1] if gaps else 0 :]

"""The files of a journal: one file for each of the newest records, and segments of a thousand older records each.

A record starts as a separate file, which makes it durable at once. From time to time the writer joins settled records
into a segment. The segment is written completely, under its own name, before any file of its records is removed. So
every record is in at least one file at any moment. If it is in two, the segment takes precedence. A reader that finds a
file gone lists the folder again.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from trainables.files.atomic import read_bytes

#: Records per segment: 800,000 records are then 800 files of a few MB each.
SEALED = 1000

#: A reader reports a missing record only after this many listings without anything new, since a writer may just be
#: joining files.
LISTINGS = 5

#: Seconds before a listed but missing file is looked for again: a network file system may list removed files.
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
        """Whether the file is a segment."""
        return self.name.endswith(".records")


@dataclass(frozen=True)
class Content:
    """The bytes of one record and their file; `sealed` if that is a segment."""

    sequence: int
    file: str
    data: bytes
    sealed: bool = False


class GapError(Exception):
    """A record is missing between others, or two have the same number.

    Attributes:
        file: the file found instead.
        expected: the missing number.
    """

    def __init__(self, file: str, expected: int) -> None:
        super().__init__(file, expected)
        self.file, self.expected = file, expected


def segment_name(first: int, last: int) -> str:
    """Return the name of the segment with these records."""
    return f"{first:010d}-{last:010d}.records"


def piece_of(name: str) -> Piece | None:
    """Parse a file name; `None` if it is not one of a journal's files."""
    if match := _SINGLE.fullmatch(name):
        return Piece(int(match[1]), int(match[1]), name)
    if match := _SEGMENT.fullmatch(name):
        return Piece(int(match[1]), int(match[2]), name) if match[1] <= match[2] else None
    return None


def pieces(folder: Path) -> list[Piece]:
    """Return the files of the journal in `folder`, in order, without those that a segment covers."""
    # Regular files only: someone else may have put a link or a pipe of that name into the folder.
    entries = [*os.scandir(folder)] if folder.is_dir() else []
    listed = [piece_of(entry.name) for entry in entries if entry.is_file(follow_symlinks=False)]
    kept: list[Piece] = []
    # A segment sorts before the single files that it covers, because these begin at the same number or later.
    for piece in sorted(filter(None, listed), key=lambda piece: (piece.first, -piece.last, piece.name)):
        if not (kept and kept[-1].sealed and piece.last <= kept[-1].last):
            kept.append(piece)
    return kept


def last_sequence(folder: Path) -> int:
    """Return the number of the newest record in `folder`; -1 without records."""
    return max((piece.last for piece in pieces(folder)), default=-1)


def contents(folder: Path, after: int = -1) -> Iterator[Content]:
    """Yield the records above `after`, in order, without checking them. Raises GapError if one is missing."""
    expected, patience = after + 1, LISTINGS
    while True:
        begun, vanished = expected, False
        gap: GapError | None = None
        for piece in pieces(folder):
            if piece.last < begun:
                continue
            if piece.last < expected:
                raise GapError(piece.name, expected)  # two files of one number
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
        # Perhaps the file was joined while it was read; then another listing has the segment.
        patience = LISTINGS if expected > begun else patience - 1
        if not patience:
            raise gap
        if vanished and expected == begun:
            time.sleep(PAUSE_SECONDS)


def sweep_id(journal: Path) -> str:
    """Return an id that separates a sweep from others of its name; its journal must have a record."""
    # The first record contains host, process and time.
    return hashlib.sha256(next(contents(journal)).data).hexdigest()[:16]


def split(piece: Piece, data: bytes, begin: int = 0) -> Iterator[Content]:
    """Yield the records of a file from number `begin` on; records missing from a truncated file are empty."""
    if not piece.sealed:
        yield Content(piece.first, piece.name, data)
        return
    lines = data.split(b"\n")  # two per record: JSON on one line contains no line break
    for sequence in range(max(piece.first, begin), piece.last + 1):
        place = 2 * (sequence - piece.first)
        yield Content(sequence, piece.name, b"\n".join(lines[place : place + 2]), sealed=True)


def joined(records: Sequence[bytes]) -> bytes:
    """Return the content of a segment from each record's two lines."""
    return b"\n".join(records) + b"\n"


def covered(folder: Path) -> list[str]:
    """Return the files whose records are all in a segment; they remain if a writer is killed before it removes them."""
    kept = {piece.name for piece in pieces(folder)}
    return [name for name in os.listdir(folder) if piece_of(name) is not None and name not in kept]


def trailing_singles(folder: Path) -> list[Piece]:
    """Return the single-record files after the last segment and after the last gap."""
    # A segment must not bridge a gap: its name promises every number in between.
    singles = [piece for piece in pieces(folder) if piece.first == piece.last]
    gaps = [place for place, (one, other) in enumerate(pairwise(singles), 1) if other.first != one.first + 1]
    return singles[gaps[-1] if gaps else 0 :]

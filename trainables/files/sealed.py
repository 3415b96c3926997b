"""Parquet files with a checksum over every byte, which reveals damage anywhere.

Parquet's own checksums cover pages only, so a flipped bit in the header of a page or in the footer silently changes
names, counts and values. DuckDB does not even check these checksums. The footer says where pages begin, so readers
ignore bytes between the last page and the footer. The seal is stored there: a mark and the CRC-32 of all other bytes.
"""

from __future__ import annotations

import functools
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq

from trainables.files.atomic import open_regular

MARK = b"sweeper-crc1"

#: The end of every Parquet file: the footer's length and Parquet's mark.
_TAIL = struct.Struct("<I4s")

_BLOCK = 2**20  # bytes read at once, so that a large file is never in memory as a whole


class DamagedFileError(ValueError):
    """A file has changed since it was written."""


def seal(path: Path) -> None:
    """Add a checksum to a Parquet file that was just written. Raises OSError."""
    with path.open("r+b") as file:
        place, end = _footer(file, path.stat().st_size)
        footer = _read(file, place, end)
        checksum = zlib.crc32(footer, _checksum(file, place))
        file.seek(place)
        file.write(MARK + struct.pack("<I", checksum) + footer)


def require_sound(path: Path) -> None:
    """Verify the checksum of a Parquet file, or the checksums of its pages if it has no seal.

    A process reads a file once, unless its size or time changes.

    Raises:
        DamagedFileError: the file was changed after it was written.
        OSError: the file cannot be read, or is not a regular file.
        ValueError: it is not a Parquet file.
    """
    descriptor = open_regular(path)
    try:
        facts = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    _require_sound(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)


def is_sealed(path: Path) -> bool:
    """Return whether a Parquet file has our checksum, which other programs do not write. Raises as `require_sound`."""
    with os.fdopen(open_regular(path), "rb") as file:
        place, _ = _footer(file, os.fstat(file.fileno()).st_size)
        return _read(file, max(place - len(MARK) - 4, 0), place).startswith(MARK)


@functools.lru_cache(2**14)
def _require_sound(path: Path, _inode: int, size: int, _modified: int) -> None:
    with os.fdopen(open_regular(path), "rb") as file:
        place, end = _footer(file, size)
        sealed = place - len(MARK) - 4
        mark = _read(file, max(sealed, 0), place)
        if mark.startswith(MARK):
            checksum = zlib.crc32(_read(file, place, end), _checksum(file, sealed))
            if mark != MARK + struct.pack("<I", checksum):
                raise DamagedFileError("it was changed after it was written: its checksum differs")
            return
        # Not sealed: written by another program, such as a user's compaction.
        file.seek(0)
        with pq.ParquetFile(file, page_checksum_verification=True) as table:
            for _ in table.iter_batches():
                pass


def _footer(file: IO[bytes], size: int) -> tuple[int, int]:
    """Return the offsets of the footer and of the end of a file. Raises DamagedFileError if it has no footer."""
    length, mark = _TAIL.unpack(_read(file, size - _TAIL.size, size)) if size > _TAIL.size else (size, b"")
    place = size - _TAIL.size - length
    if mark != b"PAR1" or place < len(mark):
        raise DamagedFileError("it is not a whole Parquet file")
    return place, size


def _read(file: IO[bytes], first: int, end: int) -> bytes:
    file.seek(first)
    return file.read(end - first)


def _checksum(file: IO[bytes], end: int) -> int:
    """Return the CRC-32 of the bytes before `end`."""
    return functools.reduce(lambda sum_, block: zlib.crc32(block, sum_), _blocks(file, end), 0)


def _blocks(file: IO[bytes], end: int) -> Iterator[bytes]:
    for first in range(0, end, _BLOCK):
        yield _read(file, first, min(first + _BLOCK, end))

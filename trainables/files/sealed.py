"""Parquet files of which a checksum covers every byte: damage shows, wherever it is.

Parquet's own checksums are of pages: a flipped bit in the header of a page or in the footer changes names, counts and
values without a sign, and DuckDB does not compare any of them. Between the last page and the footer lie bytes that no
reader looks at, since the footer says where pages begin. A seal is put there: a mark, and the CRC-32 of the rest.
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

from trainables.files.regular import open_regular

MARK = b"sweeper-crc1"

#: After the footer: its length, and Parquet's own mark.
_TAIL = struct.Struct("<I4s")

_BLOCK = 2**20


class DamagedFileError(ValueError):
    """A file's bytes are not those that were written."""


def seal(path: Path) -> None:
    """Add a checksum to a Parquet file that is just written. Raises OSError."""
    with path.open("r+b") as file:
        place, end = _footer(file, path.stat().st_size)
        footer = _read(file, place, end)
        checksum = zlib.crc32(footer, _checksum(file, place))
        file.seek(place)
        file.write(MARK + struct.pack("<I", checksum) + footer)


def require_sound(path: Path) -> None:
    """Compare a Parquet file with its checksum; of one that has none, each page with its own.

    A file is read once in a process, unless its size or time changes.

    Raises:
        DamagedFileError: it was changed after it was written.
        OSError: it cannot be read, or is no regular file.
        ValueError: it is no Parquet file.
    """
    descriptor = open_regular(path)
    try:
        facts = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    _require_sound(path, facts.st_ino, facts.st_size, facts.st_mtime_ns)


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
        file.seek(0)
        with pq.ParquetFile(file, page_checksum_verification=True) as table:
            for _ in table.iter_batches():
                pass


def _footer(file: IO[bytes], size: int) -> tuple[int, int]:
    """Return where a file's footer begins, and where the file ends. Raises DamagedFileError where it has none."""
    length, mark = _TAIL.unpack(_read(file, size - _TAIL.size, size)) if size > _TAIL.size else (size, b"")
    place = size - _TAIL.size - length
    if mark != b"PAR1" or place < len(mark):
        raise DamagedFileError("it is not a whole Parquet file")
    return place, size


def _read(file: IO[bytes], first: int, end: int) -> bytes:
    file.seek(first)
    return file.read(end - first)


def _checksum(file: IO[bytes], end: int) -> int:
    """Return the CRC-32 of a file's bytes before `end`."""
    return functools.reduce(lambda sum_, block: zlib.crc32(block, sum_), _blocks(file, end), 0)


def _blocks(file: IO[bytes], end: int) -> Iterator[bytes]:
    for first in range(0, end, _BLOCK):
        yield _read(file, first, min(first + _BLOCK, end))

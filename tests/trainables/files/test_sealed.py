"""Sealed Parquet files: every flipped bit shows, and every reader reads them as before."""

import os
import random
import struct
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainables.files.atomic import IrregularFileError
from trainables.files.sealed import DamagedFileError, require_sound, seal
from trainables.worker.trial_tables import write_parquet

TABLE = pa.table({"number": list(range(200)), "text": ["x", "y"] * 100, "share": [i / 7 for i in range(200)]})


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "part.parquet", TABLE.schema, TABLE.to_batches())


def rewritten(path: Path, content: bytes) -> Path:
    """Write a file anew under another name: what was compared is remembered by place, size and time."""
    place = path.with_name(f"{len(list(path.parent.iterdir()))}.parquet")
    place.write_bytes(content)
    return place


def test_every_reader_reads_a_sealed_file(part: Path) -> None:
    require_sound(part)
    assert pq.read_table(part) == TABLE
    assert duckdb.sql(f"FROM '{part}'").to_arrow_table() == TABLE
    import polars

    assert polars.read_parquet(part).to_dicts() == TABLE.to_pylist()


def test_every_flipped_bit_shows_or_changes_nothing(part: Path) -> None:
    content, draw, unseen = part.read_bytes(), random.Random(3), 0
    for bit in draw.sample(range(8 * len(content)), 400):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        place = rewritten(part, bytes(damaged))
        try:
            require_sound(place)
        except (DamagedFileError, OSError, ValueError):
            continue
        unseen += 1  # in the seal's mark: the pages are compared with their own checksums
        assert pq.read_table(place) == TABLE
    assert unseen <= 20


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 40 + b"PAR1", b"PAR1" + bytes(12) + b"PAR1"])
def test_what_is_no_parquet_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "part.parquet").write_bytes(content)
    with pytest.raises((OSError, ValueError)):
        require_sound(tmp_path / "part.parquet")


def test_a_cut_file_shows_and_a_pipe_is_not_waited_for(part: Path) -> None:
    content = part.read_bytes()
    for length in random.Random(4).sample(range(len(content)), 30):
        with pytest.raises((OSError, ValueError)):
            require_sound(rewritten(part, content[:length]))
    os.mkfifo(part.with_name("pipe.parquet"))
    with pytest.raises(IrregularFileError):
        require_sound(part.with_name("pipe.parquet"))


def test_files_of_others_are_compared_page_by_page(tmp_path: Path) -> None:
    place = tmp_path / "other.parquet"
    pq.write_table(TABLE, place, write_page_checksum=True, compression="none", use_dictionary=False)
    require_sound(place)
    content = bytearray(place.read_bytes())
    content[content.index(struct.pack("<d", 100 / 7))] ^= 1
    with pytest.raises((OSError, ValueError)):
        require_sound(rewritten(place, bytes(content)))
    seal(place)
    require_sound(place)

"""Segments: every record is readable at every moment, whole, in order and once, whatever is joined or killed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from sweeper.core.errors import SweeperError
from sweeper.journal import segments
from sweeper.journal.journal import Journal, JournalTail, generation, read_journal, read_kind, set_aside_damaged
from sweeper.journal.records import Attempt, Started
from tests.seeds import drawn_seed
from tests.sweeper.records import fields, made_body, record_names

WRITER = """
import sys
from pathlib import Path
from sweeper.journal import segments
from sweeper.journal.journal import Journal
from tests.sweeper.records import made_body
segments.SEALED = 7
journal = Journal(Path(sys.argv[1]))
for _ in sys.stdin:
    for number in range(journal._next % 4 + 1):
        rows = [{"epoch": 1, "measured_in_this_epoch_of_training": 0.123}] * (0, 0, 100)[number % 3]
        record = journal.append(made_body("report", {"attempt": journal._next, "epochs": rows}))
    journal.settle()
    print(record.sequence, flush=True)
"""


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(segments, "SEALED", 10)


def _fill(journal, count):
    written = []
    for _ in range(count):
        number = journal._next
        kind = ("attempt", {"attempt": 1}) if number % 13 == 0 else ("started", {"configuration": number, "attempt": 1})
        written.append(journal.append(made_body(*kind)))
        journal.settle()
    return written


def test_old_records_are_joined_and_read_the_same(tmp_path):
    written = _fill(Journal(tmp_path, durable=False), 57)
    assert sorted(os.listdir(tmp_path))[0] == "0000000000-0000000009.records"
    assert len(os.listdir(tmp_path)) == 5 + 7 and len(record_names(tmp_path)) == 7
    assert segments.last_sequence(tmp_path) == 56
    for after in (-1, 3, 9, 10, 48, 55, 56):
        assert list(read_journal(tmp_path, after)) == written[after + 1 :]
        for kind in (Attempt, Started):
            expected = [record for record in written[after + 1 :] if isinstance(record.body, kind)]
            assert list(read_kind(tmp_path, kind, after)) == expected
    assert list(JournalTail(tmp_path).read()) == written


def test_who_was_killed_before_the_files_were_removed_left_nothing_double(tmp_path):
    written = _fill(Journal(tmp_path, durable=False), 10)
    for record in written[:7]:
        (tmp_path / record.file_name).write_bytes(record.to_bytes())
    assert list(read_journal(tmp_path)) == written
    Journal(tmp_path, durable=False)
    assert os.listdir(tmp_path) == ["0000000000-0000000009.records"]


def test_readers_never_miss_a_record_while_segments_are_made(tmp_path):
    """A reader that begins again and again, and one that follows; the writer joins records all the time."""
    journal, written, faults = Journal(tmp_path, durable=False), [], []
    tail, followed, over = JournalTail(tmp_path), [], threading.Event()

    def read():
        while not over.is_set():
            known = len(written)
            found = [record.sequence for record in read_journal(tmp_path)]
            if found != list(range(len(found))) or len(found) < known:
                faults.append((known, found))
            followed.extend(tail.read())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(60):
        written.extend(_fill(journal, 11))
    over.set()
    reader.join()
    followed.extend(tail.read())
    assert not faults and followed == written


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_in_a_segment_costs_nothing_before_it(tmp_path, seed):
    written = _fill(Journal(tmp_path, durable=False), 34)
    rng = random.Random(seed)
    path = next(tmp_path.glob(f"{10 * rng.randrange(3):010d}-*.records"))
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data) - 1)
    data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    read = []
    with pytest.raises(SweeperError, match="is damaged") as caught:
        for record in read_journal(tmp_path):
            read.append(record)  # noqa: PERF402 - what came before the error is what is asked
    assert str(path) in str(caught.value) and read == written[: len(read)]
    assert len(read) >= int(path.name[:10])
    before = generation(tmp_path)
    assert set_aside_damaged(tmp_path) and generation(tmp_path) != before
    assert list(read_journal(tmp_path)) == read and set_aside_damaged(tmp_path) == []
    lost = sum(file.read_bytes().count(b'{"sequence"') for file in tmp_path.glob("*.damaged"))
    assert lost >= len(written) - len(read) - 1, "what was set aside is kept"
    again = _fill(Journal(tmp_path, durable=False), 3)
    assert list(read_journal(tmp_path)) == read + again


def test_a_damaged_record_is_not_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEALED", 10**9)
    written = _fill(Journal(tmp_path, durable=False), 15)
    (tmp_path / written[4].file_name).write_bytes(b"half\nof\nit")
    monkeypatch.setattr(segments, "SEALED", 10)
    Journal(tmp_path, durable=False)
    assert len(os.listdir(tmp_path)) == 15


def test_two_writers_never_take_each_others_place(tmp_path):
    """Where there are no locks, both may be at work for a moment: a record counts once, and one of them stops."""
    first = Journal(tmp_path, durable=False, alone=False)
    written = _fill(first, 14)
    second = Journal(tmp_path, durable=False, alone=False)
    written += _fill(second, 2)
    with pytest.raises(SweeperError, match="another process has written record 14"):
        first.append(made_body("ended", {}))
    written += _fill(second, 9)
    assert list(read_journal(tmp_path)) == written
    names = [*segments.pieces(tmp_path)]
    assert [(piece.first, piece.last) for piece in names[:2]] == [(0, 9), (10, 19)] and len(names) == 2 + 5
    assert list(read_journal(tmp_path)) == list(JournalTail(tmp_path).read()) == written


def test_a_lost_segment_is_named(tmp_path):
    _fill(Journal(tmp_path, durable=False), 34)
    (tmp_path / "0000000010-0000000019.records").unlink()
    with pytest.raises(SweeperError, match=r"has 0000000020-0000000029\.records where record 0000000010 was expected"):
        list(read_journal(tmp_path))


def test_a_full_disk_leaves_files_as_they_are(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    journal = Journal(tmp_path, durable=False)
    written = _fill(journal, 9)
    monkeypatch.setattr(journal, "_make_segment", full)
    written += _fill(journal, 6)
    monkeypatch.undo()
    assert len(os.listdir(tmp_path)) == 15 and list(read_journal(tmp_path)) == written


def _killed(folder, kills):
    """Kill the writer so often; whatever it acknowledged is there, in order and once, also for a reader meanwhile."""
    draw, acknowledged, joined = random.Random(drawn_seed()), -1, 0
    for _ in range(kills):
        command, pipe = [sys.executable, "-c", WRITER, str(folder)], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0) as writer:
            # As many batches as are asked for: left alone it writes the more, the longer the reader takes.
            for _ in range(draw.randint(1, 8)):
                writer.stdin.write(b"\n" * 2)
                acknowledged = int(writer.stdout.readline())
                assert len(list(read_journal(folder))) > acknowledged
                acknowledged = int(writer.stdout.readline())
            writer.stdin.write(b"\n" * 20)
            time.sleep(draw.uniform(0, 5e-3))
            writer.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split(b"\n")[:-1])])
        records = list(read_journal(folder))
        assert [record.sequence for record in records] == list(range(len(records))) and len(records) > acknowledged
        assert [fields(record)["attempt"] for record in records] == list(range(len(records)))
        assert {len(fields(record)["epochs"]) for record in records} == {0, 100}
        joined = sum(piece.sealed for piece in segments.pieces(folder))
        copy = folder.parent / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        Journal(copy, durable=False)
        assert list(read_journal(copy)) == records
    assert joined


@pytest.mark.integration
def test_killing_the_writer_between_segments_loses_nothing(tmp_path):
    _killed(tmp_path / "journal", 4)


@pytest.mark.slow
def test_killing_the_writer_often_loses_nothing(tmp_path):
    _killed(tmp_path / "journal", 200)

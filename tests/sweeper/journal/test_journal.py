"""A record is whole or absent; damage and gaps are named; killing the writer at any moment loses nothing recorded."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest

from sweeper.core.errors import SweeperError
from sweeper.journal.journal import Journal, JournalTail, read_journal, read_kind, set_aside_damaged
from sweeper.journal.records import Ended
from tests.seeds import drawn_seed
from tests.sweeper.records import fields, made_body, made_record, record_names

WRITER = """
import sys
from pathlib import Path
from sweeper.journal.journal import Journal
from tests.sweeper.records import made_body
journal = Journal(Path(sys.argv[1]))
number = journal._next
while True:
    rows = [{"replicate": 0, "epoch": 1, "measured_in_this_epoch_of_training": 0.123}] * 400
    record = journal.append(made_body("report", {"configuration": number % 7, "epoch": number, "epochs": rows}))
    print(record.sequence, flush=True)
    number += 1
"""


def _fill(folder, count):
    journal = Journal(folder, clock=lambda: 12.5, durable=False)
    return [journal.append(made_body("started", {"configuration": i, "attempt": 1})) for i in range(count)]


def _message(folder):
    with pytest.raises(SweeperError) as caught:
        list(read_journal(folder))
    return str(caught.value)


def test_file_names_say_what_happened_and_sort_as_it_did(tmp_path):
    journal = Journal(tmp_path)
    journal.append(made_body("attempt", {"attempt": 1}))
    journal.append(made_body("report", {"configuration": 7, "epoch": 9}))
    assert record_names(tmp_path) == ["0000000000-attempt.json", "0000000001-report-c00007-e00009.json"]


def test_a_journal_opened_again_continues_the_sequence(tmp_path):
    _fill(tmp_path, 3)
    assert Journal(tmp_path).append(made_body("ended", {})).sequence == 3
    assert len(list(read_journal(tmp_path))) == 4


def test_other_files_are_no_records(tmp_path):
    written = _fill(tmp_path, 2)
    for name in (".0000000002.tmp-77", "notes.txt", "0000000002-report.json.bak", "2-report.json", "0000000009"):
        (tmp_path / name).write_text("half of something")
    assert list(read_journal(tmp_path)) == written
    assert Journal(tmp_path).append(made_body("ended", {})).sequence == 2


@pytest.mark.parametrize("seed", range(40))
def test_damage_is_named_wherever_it_is(tmp_path, seed):
    """A flipped bit, or an end that is missing; the records before are read."""
    written, rng = _fill(tmp_path, 4), random.Random(seed)
    number = rng.randrange(4)
    path = tmp_path / written[number].file_name
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    if seed % 3:
        data[place] ^= 1 << rng.randrange(8)
    else:
        del data[place:]
    path.write_bytes(data)
    records = read_journal(tmp_path)
    assert [next(records) for _ in range(number)] == written[:number]
    with pytest.raises(SweeperError, match=re.escape(f"the journal record {path} is damaged")):
        next(records)


@pytest.mark.parametrize("damage", ["truncated", "missing", "none"])
def test_damaged_records_can_be_set_aside(tmp_path, damage):
    written = _fill(tmp_path, 6)
    path = tmp_path / written[3].file_name
    if damage != "none":
        path.unlink()
    if damage == "truncated":
        path.write_bytes(b"half")
    expected = {"truncated": written[3:], "missing": written[4:], "none": []}[damage]
    assert set_aside_damaged(tmp_path) == [record.file_name for record in expected]
    assert list(read_journal(tmp_path)) == (written if damage == "none" else written[:3])
    assert all((tmp_path / f"{record.file_name}.damaged").exists() for record in expected)
    assert Journal(tmp_path).append(made_body("ended", {})).sequence == (6 if damage == "none" else 3)
    assert set_aside_damaged(tmp_path) == []


@pytest.mark.parametrize("missing", [0, 2])
def test_a_missing_record_is_named(tmp_path, missing):
    written = _fill(tmp_path, 4)
    (tmp_path / written[missing].file_name).unlink()
    assert f"record {missing:010d} was expected" in _message(tmp_path)


def test_a_record_that_claims_more_than_the_memory_is_damaged(tmp_path):
    journal = Journal(tmp_path, durable=False)
    records = [journal.append(Ended(attempt=1, outcome="finished")) for _ in range(2)]
    os.truncate(tmp_path / records[1].file_name, 2**43)
    for reading in (read_journal(tmp_path), read_kind(tmp_path, Ended), JournalTail(tmp_path).read()):
        with pytest.raises(
            SweeperError, match=rf"{records[1].file_name} is damaged: it is larger(.|\n)*discard-damaged"
        ):
            list(reading)
    assert set_aside_damaged(tmp_path) == [records[1].file_name]
    assert len(list(read_journal(tmp_path))) == 1


def test_a_record_under_a_wrong_number_is_found(tmp_path):
    written = _fill(tmp_path, 3)
    (tmp_path / written[1].file_name).unlink()
    shutil.copy(tmp_path / written[2].file_name, tmp_path / written[1].file_name.replace("c00001", "c00002"))
    assert written[1].file_name[:10] in _message(tmp_path)


def test_two_records_with_one_number_are_found(tmp_path):
    _fill(tmp_path, 3)
    twin = made_record(1, "ended", 0.0, {})
    (tmp_path / twin.file_name).write_bytes(twin.to_bytes())
    _message(tmp_path)


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SweeperError, match="cannot be written to"):
        Journal(tmp_path / "file" / "journal")


@pytest.mark.integration
def test_killing_the_writer_leaves_whole_records_and_a_sequence_that_continues(tmp_path):
    """Kill moments are drawn by progress: after a random number of further records, plus random microseconds."""
    seed = drawn_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    acknowledged = -1
    for _ in range(12):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            for _ in range(rng.randint(1, 20)):
                acknowledged = int(writer.stdout.readline())
            time.sleep(rng.uniform(0, 2e-3))
            writer.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split(b"\n")[:-1])])
        records = list(read_journal(tmp_path))
        assert [r.sequence for r in records] == list(range(len(records)))
        assert all(fields(r)["epoch"] == r.sequence and len(fields(r)["epochs"]) == 400 for r in records)
        assert len(records) > acknowledged
    assert Journal(tmp_path).append(made_body("ended", {})).sequence == len(records)


def test_a_full_disk_records_nothing_and_says_so(tmp_path):
    """The limit on a file's size stands for the disk: a write beyond it fails half done, as on a full disk."""
    _fill(tmp_path, 2)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from sweeper.core.errors import SweeperError\n"
        "from sweeper.journal.journal import Journal\n"
        "from tests.sweeper.records import made_body\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "try:\n"
        "    journal.append(made_body('report', {'device': 'x' * 10_000}))\n"
        "except SweeperError as error:\n"
        "    print(error)\n"
        "print(journal.append(made_body('ended')).sequence)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], preexec_fn=limit, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be written to: File too large" in done.stdout and "sweeper resume" in done.stdout
    assert done.stdout.splitlines()[-1] == "2"
    assert [r.kind for r in read_journal(tmp_path)] == ["started", "started", "ended"]
    assert sorted(os.listdir(tmp_path)) == record_names(tmp_path)


@pytest.mark.slow
def test_a_disk_of_64_kib_that_fills_up(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode != 0:
        assert b"permi" in mounted.stderr.lower() or b"superuser" in mounted.stderr.lower(), mounted.stderr
        return
    try:
        journal = Journal(tmp_path)
        with pytest.raises(SweeperError, match="No space left"):
            for number in range(100):
                journal.append(made_body("report", {"device": "x" * 3000, "epoch": number}))
        records = list(read_journal(tmp_path))
        assert 0 < len(records) < 25
        assert sorted(os.listdir(tmp_path)) == record_names(tmp_path)
        (tmp_path / records[-1].file_name).unlink()
        assert Journal(tmp_path).append(made_body("ended", {})).sequence == len(records) - 1
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)

"""A file is whole or absent, whatever becomes of its writer; what a dead writer leaves is known by its name."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.patience import patient
from trainables.files import atomic
from trainables.files.atomic import (
    clear_leftovers,
    is_temporary,
    kept_choice,
    replacing,
    temporary_folder,
    temporary_name,
    write_bytes,
    write_text,
)

KILLED = """
import os, signal, sys
from pathlib import Path
from trainables.files.atomic import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half of the ne")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "first, γ")
    write_bytes(tmp_path / "file", b"second", durable=True)
    assert (tmp_path / "file").read_bytes() == b"second" and os.listdir(tmp_path) == ["file"]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "file") as temporary:
        temporary.write_text("half")
        assert temporary.parent == tmp_path and is_temporary(temporary.name)
        raise KeyboardInterrupt
    assert (tmp_path / "file").read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_writer_killed_before_the_rename_leaves_what_was_there(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file")], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "file").read_text() == "old"
    (leftover,) = (path for path in tmp_path.iterdir() if path.name != "file")
    assert leftover.read_text() == "half of the ne"
    assert clear_leftovers(tmp_path, shared=True) == [leftover] and os.listdir(tmp_path) == ["file"]


def test_a_durable_file_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed, flush = [], os.fsync

    def noting(descriptor: int) -> None:
        flushed.append((os.fstat(descriptor).st_size, os.listdir(tmp_path)))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    write_bytes(tmp_path / "quick", b"four")
    (tmp_path / "quick").unlink()
    write_bytes(tmp_path / "file", b"four", durable=True)
    ((size, names),) = flushed
    assert size == 4 and "file" not in names and os.listdir(tmp_path) == ["file"]


def test_a_link_is_replaced_and_not_what_it_points_to(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with replacing(tmp_path / "current") as link:
            link.symlink_to(name, target_is_directory=True)
    assert (tmp_path / "current").readlink() == Path("two") and (tmp_path / "one").is_dir()


def test_a_temporary_folder_goes_and_what_was_renamed_stays(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as folder:
        (folder / "inner").mkdir()
        (folder / "rest").touch()
        (folder / "inner").rename(tmp_path / "made")
    assert os.listdir(tmp_path) == ["made"]
    with pytest.raises(FileNotFoundError), temporary_folder(tmp_path / "missing"):
        pass


def test_names_are_distinguished() -> None:
    assert all(map(is_temporary, (".tmp-77-0a1b2c3d", temporary_name())))
    assert temporary_name() != temporary_name()
    others = ("sweep.yaml", "e00003.pt", ".cifar.tar.gz.lock", "0000000002-report.json", "report.html", "a.tmp", ".tmp")
    assert not any(map(is_temporary, others))


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".tmp-77-0a1b2c3d", ".tmp-x", temporary_name(), "report.html", ".hidden"):
        (tmp_path / name).touch()
    (tmp_path / f"{temporary_name()}").mkdir()
    (tmp_path / temporary_name()).symlink_to("nowhere")
    assert len(clear_leftovers(tmp_path)) == 5
    assert sorted(os.listdir(tmp_path)) == [".hidden", "report.html"]
    assert clear_leftovers(tmp_path / "missing") == []


def test_a_living_writers_file_is_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        names = [f".tmp-{living.pid}-0a1b2c3d", f".tmp-{living.pid}-11111111", f".tmp-{os.getpid()}-0a1b2c3d"]
        for name in names:
            (tmp_path / name).touch()
        assert clear_leftovers(tmp_path, shared=True) == [tmp_path / names[2]]
        living.communicate(b"\n")
    assert len(clear_leftovers(tmp_path, shared=True)) == 2

    def anothers(process: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(atomic.os, "kill", anothers)
    (tmp_path / names[0]).touch()
    assert clear_leftovers(tmp_path, shared=True) == []


def test_an_answer_is_measured_once_for_each_key(tmp_path):
    measured = []

    def measure(answer):
        measured.append(answer)
        return answer

    folder = tmp_path / "packing"
    assert kept_choice(folder, json.dumps(["mlp"]), lambda: measure("lanes")) == "lanes"
    assert kept_choice(folder, json.dumps(["mlp"]), lambda: measure("sequential")) == "lanes"
    assert kept_choice(folder, json.dumps(["resnet8"]), lambda: measure("sequential")) == "sequential"
    assert measured == ["lanes", "sequential"]
    assert {json.loads(file.read_text())["answer"] for file in folder.iterdir()} == {"lanes", "sequential"}


def test_processes_that_measure_at_once_take_the_same_answer(tmp_path):
    together = Barrier(8)

    def measure(number):
        together.wait(patient(10))
        return f"answer {number}"

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(kept_choice, tmp_path, "[1]", lambda n=n: measure(n)) for n in range(8)]
        answers = {job.result() for job in jobs}
    assert len(answers) == 1 and len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"other": 1}'])
def test_a_broken_file_is_measured_again(tmp_path, broken):
    kept_choice(tmp_path, "[1]", lambda: "lanes")
    (file,) = tmp_path.iterdir()
    file.write_text(broken)
    assert kept_choice(tmp_path, "[1]", lambda: "sequential") == "sequential"
    assert kept_choice(tmp_path, "[1]", lambda: pytest.fail("measured")) == "sequential"


def test_a_folder_that_cannot_be_made_leaves_each_process_its_own(tmp_path):
    (tmp_path / "file").write_text("")
    assert kept_choice(tmp_path / "file" / "below", "[1]", lambda: "lanes") == "lanes"

"""One process at a time has a lock, several a shared one, and none outlives its process."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainables.files.locks import LockHeldError, file_lock, lock_open_file, seconds_waited

HOLDER = """
import sys
from pathlib import Path
from trainables.files.locks import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

COUNTER = """
import sys
from pathlib import Path
from trainables.files.locks import file_lock
folder = Path(sys.argv[1])
for _ in range(200):
    with file_lock(folder / "lock"):
        number = int((folder / "number").read_text())
        (folder / "number").write_text(str(number + 1))
"""


@contextmanager
def held_elsewhere(path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_without_patience_a_held_lock_raises(tmp_path: Path) -> None:
    with (
        held_elsewhere(tmp_path / "lock"),
        pytest.raises(LockHeldError, match="lock"),
        file_lock(tmp_path / "lock", patience=0),
    ):
        pytest.fail("two have the lock")


def test_it_falls_with_its_process(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "lock") as process:
        process.kill()
        process.wait()
        with file_lock(tmp_path / "lock", patience=0):
            pass


def test_it_is_given_back_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="inside"), file_lock(tmp_path / "lock", patience=0):
            raise ValueError("inside")


def test_who_waits_comes_after(tmp_path: Path) -> None:
    """Two processes add one to a number, 200 times each; without a lock some of it is lost."""
    (tmp_path / "number").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNTER, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert (tmp_path / "number").read_text() == "400"


def test_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, pauses = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    with held_elsewhere(tmp_path / "lock"), (tmp_path / "lock").open() as file:
        with monkeypatch.context() as faked:
            faked.setattr(time, "sleep", sleep)
            faked.setattr(time, "monotonic", lambda: now[0])
            assert not lock_open_file(file, patience=1.0)
        assert 1.0 <= sum(pauses) < 1.2 and pauses == sorted(pauses)


def test_a_folder_can_be_locked_and_shared_by_its_descriptor(tmp_path: Path) -> None:
    first, second, third = (os.open(tmp_path, os.O_RDONLY) for _ in range(3))
    assert lock_open_file(first, patience=0) and not lock_open_file(second, patience=0)
    os.close(first)
    assert all(lock_open_file(sharing, shared=True, patience=0) for sharing in (second, third))
    assert not lock_open_file(second, patience=0), "one has it alone while another shares it"
    os.close(third)
    assert lock_open_file(second, patience=0)
    os.close(second)


def test_a_folder_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), file_lock(tmp_path / "missing" / "lock"):
        pass


def test_the_time_a_thread_waits_for_locks_is_counted(tmp_path: Path) -> None:
    me = threading.get_ident()
    before = seconds_waited(me)
    with file_lock(tmp_path / "free"):
        assert seconds_waited(me) - before < 1
    with held_elsewhere(tmp_path / "lock"), pytest.raises(LockHeldError), file_lock(tmp_path / "lock", patience=0.3):
        pass
    assert seconds_waited(me) - before >= 0.3
    assert seconds_waited(-1) == 0.0

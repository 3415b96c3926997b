"""One driver a sweep, for as long as it lives and no longer; also on file systems without locks.

`flock` is made to fail as such a file system has it fail, by a library that is loaded before the system's.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.storage.lease import Lease, holder
from tests.faults.processes import wait_until
from tests.patience import patient
from tests.running import TINY, started, wait_for_records, write_space
from trainables.files import locks
from trainables.files.locks import LOCKLESS, SILENCE_SECONDS, Heartbeat

HOLD = """
import sys, time
from pathlib import Path
from sweeper.storage.lease import Lease
with Lease(Path(sys.argv[1])) as lease:
    print("held", lease.locked, flush=True)
    while True:
        time.sleep(0.1)
        lease.locked or lease.beat()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "quickstart" / "driver.json"


@pytest.fixture
def other_driver(path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held True\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("odd", [os.mkfifo, os.mkdir, lambda path: path.symlink_to(path)])
def test_what_is_no_record_of_a_driver_is_none_and_refused(path, odd):
    path.parent.mkdir()
    odd(path)
    assert holder(path) is None
    with pytest.raises(SweeperError, match="not a regular file"), Lease(path):
        pass


def test_a_second_driver_learns_who_the_first_is(path, other_driver):
    with pytest.raises(SweeperError) as caught, Lease(path):
        pass
    assert f"process {other_driver.pid} on {socket.gethostname()}" in str(caught.value)
    assert "'quickstart'" in str(caught.value) and "sweeper stop quickstart" in str(caught.value)
    assert holder(path)["pid"] == other_driver.pid


def test_a_killed_driver_frees_its_sweep(path, other_driver):
    other_driver.send_signal(signal.SIGKILL)
    other_driver.wait()
    assert holder(path) is None
    with Lease(path):
        assert holder(path)["pid"] == os.getpid()


def test_a_driver_that_raises_frees_its_sweep(path):
    with pytest.raises(RuntimeError), Lease(path):
        raise RuntimeError("the sweep broke")
    assert holder(path) is None


def test_asking_who_drives_never_keeps_a_driver_out(path):
    """A look takes the lock for a moment; a driver that starts in that moment must not take it for another driver."""
    with Lease(path):
        pass
    looking, done = threading.Event(), threading.Event()

    def look():
        while not done.is_set():
            holder(path)
            looking.set()
            time.sleep(0.001)

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for looker in lookers:
        looker.start()
    try:
        looking.wait()
        for _ in range(50):
            with Lease(path):
                pass
    finally:
        done.set()
        for looker in lookers:
            looker.join()


def test_the_heartbeat_is_renewed_when_due(path, monkeypatch):
    now, began = time.time(), time.monotonic()
    with Lease(path) as lease:
        first = holder(path)["heartbeat"]
        monkeypatch.setattr(time, "time", lambda: now - 3600)
        monkeypatch.setattr(time, "monotonic", lambda: began + 1)
        lease.beat()
        assert holder(path)["heartbeat"] == first
        monkeypatch.setattr(time, "monotonic", lambda: began + 60)
        lease.beat()
        assert holder(path)["heartbeat"] == now - 3600, "although the clock was put back"


def test_a_holder_whose_record_is_not_written_yet_still_counts(path, other_driver):
    for content in ("", "{", "[]", "null"):
        path.write_text(content)
        assert holder(path) == {}
    with pytest.raises(SweeperError, match=r"process \? on \?"), Lease(path):
        pass


SHIM = """
#include <errno.h>
int flock(int file, int kind) { errno = %d; return -1; }
"""


def _environment(folder: Path, number: int) -> dict[str, str]:
    """The environment of processes whose `flock` fails with this error."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    (folder / "shim.c").write_text(SHIM % number)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c"], check=True)
    return {**os.environ, "LD_PRELOAD": str(folder / "shim.so")}


def _asked(program: str, environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(120))


@pytest.mark.parametrize("number", sorted({*LOCKLESS}))
def test_every_lock_has_its_stand_in(tmp_path: Path, number: int) -> None:
    program = """
import json, sys
from pathlib import Path
from trainables.files.locks import LockHeldError, NoLocksError, file_lock, lock_open_file
from trainables.files.locks import Scratch
folder = Path(sys.argv[1])
with open(folder / "file", "w") as file:
    try:
        lock_open_file(file)
        told = None
    except NoLocksError as error:
        told = error.errno
with file_lock(folder / "lock"):
    beside = sorted(path.name for path in folder.iterdir())
with Scratch("sweeper-lockless-") as scratch:
    made = scratch.is_dir()
print(json.dumps([told, beside, made, sorted(path.name for path in folder.iterdir())]))
"""
    environment = _environment(tmp_path, number)
    place = tmp_path / "place"
    place.mkdir()
    done = _asked(program, environment, place)
    expected = [number, ["file", "lock", "lock.heartbeat"], True, ["file", "lock"]]
    assert done.returncode == 0 and json.loads(done.stdout) == expected, done.stderr


@pytest.mark.integration
def test_a_living_driver_is_named_and_a_killed_one_makes_room(tmp_path: Path) -> None:
    environment, path = _environment(tmp_path, LOCKLESS[0]), tmp_path / "quickstart" / "driver.json"
    look = "import pathlib, sys; from sweeper.storage.lease import holder; print(holder(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "held False\n"
        assert f"'pid': {first.pid}" in _asked(look, environment, path).stdout
        refused = _asked(HOLD, environment, path)
        assert refused.returncode == 1 and f"already being driven by process {first.pid}" in refused.stderr
        os.kill(first.pid, signal.SIGSTOP)
        began = time.monotonic()
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as second:
            assert second.stdout is not None and second.stdout.readline() == "held False\n"
            assert time.monotonic() - began >= SILENCE_SECONDS
            os.kill(first.pid, signal.SIGCONT)
            assert first.wait(patient(60)) == 1, "it finds its right gone"
            second.send_signal(signal.SIGKILL)


def test_a_silent_process_loses_its_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "SILENCE_SECONDS", 0.4)
    monkeypatch.setattr(locks, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.3)
    first, second = (Heartbeat(tmp_path / "right") for _ in range(2))
    assert first.take()
    monkeypatch.setattr(os, "utime", lambda *_, **__: None)  # no sign of life
    assert second.take()
    monkeypatch.undo()
    wait_until(lambda: first.lost, 10)
    assert not second.lost
    first.release()
    assert (tmp_path / "right").exists(), "who has lost a right cannot give it back"
    second.release()
    assert [*tmp_path.iterdir()] == []


def test_a_living_process_keeps_its_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.3)
    first = Heartbeat(tmp_path / "right")
    assert first.take()
    began = time.monotonic()
    assert not Heartbeat(tmp_path / "right").take(0.0)
    assert time.monotonic() - began < SILENCE_SECONDS
    first.release()


@pytest.mark.slow
def test_a_sweep_is_killed_and_resumed_without_locks(tmp_path: Path) -> None:
    environment, space = _environment(tmp_path, LOCKLESS[0]), write_space(tmp_path, TINY % 12)
    paths = SweepPaths(tmp_path / "results" / "small")
    with started("run", space, "--cpus", "1", cwd=tmp_path, environment=environment) as process:
        wait_for_records(paths, 4, process)
        process.kill()
    with started("resume", "small", "--cpus", "1", cwd=tmp_path, environment=environment) as process:
        assert process.wait(patient(300)) == 0, (tmp_path / "driver.err").read_text()
    assert "Traceback" not in (tmp_path / "driver.err").read_text()
    ended = [record for record in read_journal(paths.journal) if record.kind == "report"]
    assert len(ended) == 12 and not paths.lease.with_name("driver.heartbeat").exists()

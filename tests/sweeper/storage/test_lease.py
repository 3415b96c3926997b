"""One driver a sweep, for as long as it lives and no longer."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from sweeper.core.errors import SweeperError
from sweeper.storage.lease import Lease, holder

HOLD = """
import sys, time
from pathlib import Path
from sweeper.storage.lease import Lease
with Lease(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "quickstart" / "driver.json"


@pytest.fixture
def other_driver(path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_sweep_without_a_driver_has_no_holder(path):
    assert holder(path) is None
    with Lease(path):
        pass
    assert holder(path) is None


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


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_holder_whose_record_is_not_written_yet_still_counts(path, content, other_driver):
    path.write_text(content)
    assert holder(path) == {}
    with pytest.raises(SweeperError, match=r"process \? on \?"), Lease(path):
        pass


def test_a_folder_that_cannot_be_written_to_is_a_clear_error(tmp_path):
    (tmp_path / "results").write_text("a file where the folder should be")
    with pytest.raises(SweeperError, match="cannot be written to"), Lease(tmp_path / "results" / "driver.json"):
        pass

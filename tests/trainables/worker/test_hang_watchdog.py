"""A process that waits for what never comes is ended; one that works is left alone, however long it takes."""

import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.patience import slowness
from trainables.files.locks import file_lock
from trainables.worker.hang_watchdog import HUNG_FILE, Watchdog, last_hang
from trainables.worker.trial_reports import TrialEnded


def wait_for_an_event():
    threading.Event().wait()


def look_into_an_empty_queue_again_and_again():
    """As torch's data loader does while its processes are stuck."""
    empty: queue.Queue[int] = queue.Queue()
    while True:
        try:
            empty.get(timeout=1.0)
        except queue.Empty:
            continue


def compute(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("wait", [wait_for_an_event, lambda: time.sleep(600), threading.Lock().acquire])
def test_a_wait_that_never_ends_is_ended_and_says_where(wait):
    before, threads = signal.getsignal(signal.SIGUSR2), threading.active_count()
    with pytest.raises(TrialEnded) as ended, Watchdog(0.3).watching():
        wait()
        wait()
    assert ended.value.failure.kind == "hung" and ended.value.failure.values["hang_timeout"] == 0.3
    assert {"silent", "function", "file", "line"} <= ended.value.failure.values.keys()
    assert signal.getsignal(signal.SIGUSR2) is before
    assert threading.active_count() == threads


def test_looking_again_and_again_is_no_work():
    with pytest.raises(TrialEnded, match="silent"), Watchdog(4.0).watching():
        look_into_an_empty_queue_again_and_again()


def test_work_is_left_alone():
    limit = 0.1 * slowness()
    with Watchdog(limit).watching():
        compute(5 * limit)
        for _ in range(10):  # waiting in between, as for a slow disk
            time.sleep(0.08)
            compute(0.005)


def test_what_computes_for_ever_is_ended_well_after_the_trials_own_limit():
    began = time.monotonic()
    with pytest.raises(TrialEnded) as ended, Watchdog(None, 0.2).watching():
        compute(60)
    assert ended.value.failure.values["limit"] == pytest.approx(0.6)
    assert time.monotonic() - began > 0.6


def test_waiting_for_a_lock_is_no_hang(tmp_path):
    """A neighbour has it, who downloads the data set for all; its own watch sees to it that it does not hang."""
    limit, taken, release = 0.2 * slowness(), threading.Event(), threading.Event()

    def neighbour():
        with file_lock(tmp_path / "lock"):
            taken.set()
            release.wait(20 * limit)

    thread = threading.Thread(target=neighbour)
    thread.start()
    taken.wait()
    threading.Timer(4 * limit, release.set).start()
    with Watchdog(limit, limit).watching(), file_lock(tmp_path / "lock"):
        pass
    assert release.is_set()
    thread.join()
    with pytest.raises(TrialEnded, match="silent"), Watchdog(limit).watching():
        time.sleep(60)


def test_without_limits_nothing_is_watched():
    threads = threading.active_count()
    with Watchdog(None).watching():
        assert threading.active_count() == threads


def test_other_threads_are_not_watched():
    found = []

    def work():
        with Watchdog(0.05).watching():
            time.sleep(0.3)
        found.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found


def test_what_cannot_be_interrupted_is_killed_and_leaves_its_reason(tmp_path: Path):
    (tmp_path / HUNG_FILE).write_text("of an earlier process")
    program = (
        "import ctypes, sys; from pathlib import Path; import trainables.worker.hang_watchdog as w\n"
        "w.INTERRUPT_SECONDS = 0.3\n"
        "lock, c = ctypes.create_string_buffer(64), ctypes.CDLL(None)\n"
        "with w.Watchdog(0.3).watching(Path(sys.argv[1])):\n"
        "    assert w.last_hang(Path(sys.argv[1])) is None\n"
        "    c.pthread_mutex_lock(lock); c.pthread_mutex_lock(lock)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    failure = last_hang(tmp_path)
    assert failure is not None and failure.kind == "hung"
    assert (failure.values["hang_timeout"], failure.values["killed"]) == (0.3, "SIGKILL")
    assert last_hang(tmp_path) is None

"""Two drivers of a sweep in a store: one is stopped for longer than its lease, another takes over, the first wakes."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.journal.segments import last_sequence
from sweeper.storage.places import DRIVING, local_copy, place_of
from tests.faults.processes import wait_until
from tests.faults.reference import SMALL, check_survived, undisturbed
from tests.patience import patient
from tests.remote.services import BUCKET, s3_server
from tests.running import started, wait_for_records, write_space
from tests.seeds import drawn_seed

SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as environment, pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        yield environment


@pytest.mark.parametrize("pauses", [pytest.param(20, marks=SLOW)])
def test_a_driver_that_was_stopped_for_longer_than_its_lease(
    service: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: int
) -> None:
    space = write_space(tmp_path, SMALL % {"samples": 8})
    expected, draw = undisturbed(space), random.Random(drawn_seed())
    for number in range(pauses):
        folder = tmp_path / f"night-{number}"
        address = f"s3://{BUCKET}/two-drivers/{number}"
        first = _Machine(folder / "first", address, monkeypatch)
        second = _Machine(folder / "second", address, monkeypatch)
        run = ["run", space, "--name", "night", "--output", address, "--no-mlflow", "--cpus", "1"]
        resume = ["resume", f"{address}/night", "--no-mlflow", "--cpus", "1"]
        with started(*run, cwd=first.folder, environment=first.environment) as paused:
            wait_for_records(first.paths, draw.randint(2, 12), paused)
            time.sleep(draw.random() * 0.2)
            os.kill(paused.pid, signal.SIGSTOP)
            with started(*resume, cwd=second.folder, environment=second.environment) as other:
                _wake_some_time(paused, other, second.paths, draw)
                assert other.wait(patient(200)) == 0, second.said()
            assert paused.wait(patient(120)) == 2, first.said()
        assert "has taken the sweep 'night' over" in first.said() and "Traceback" not in first.said(), first.said()
        monkeypatch.setenv("SWEEPER_CACHE", str(folder / "reader"))
        name, copy = local_copy(f"{address}/night", "results")
        check_survived(SweepPaths(copy / name), expected)


def _wake_some_time(
    paused: subprocess.Popen[str], other: subprocess.Popen[str], paths: SweepPaths, draw: random.Random
) -> None:
    """Let the first driver go on at a random moment after the other has taken over: soon, later, or after its end."""
    before = last_sequence(paths.journal)
    wait_until(lambda: last_sequence(paths.journal) > before or other.poll() is not None, 120)
    taken = last_sequence(paths.journal)
    further = draw.choice([1, 3, 8, 1000])
    wait_until(lambda: last_sequence(paths.journal) >= taken + further or other.poll() is not None, 200)
    time.sleep(draw.random() * 0.3)
    os.kill(paused.pid, signal.SIGCONT)


class _Machine:
    """A machine with a cache of its own."""

    def __init__(self, folder: Path, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.environment = {**os.environ, "SWEEPER_CACHE": str(folder / "cache")}
        monkeypatch.setenv("SWEEPER_CACHE", str(folder / "cache"))
        self.paths = SweepPaths(place_of(address, DRIVING).folder / "night")

    def said(self) -> str:
        """What its driver printed."""
        return (self.folder / "driver.out").read_text() + (self.folder / "driver.err").read_text()

"""Sweeps in a store whose drivers, trial processes, nodes or store fail: nothing is lost, nothing doubled.

Each driver works on a machine of its own, where nothing of the sweep is; each sweep is compared, from the store, with
the undisturbed one, and its decisions are recomputed.
"""

import itertools
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.execution.driver.judging import STORAGE
from sweeper.journal.journal import read_journal
from sweeper.journal.segments import last_sequence
from sweeper.storage.places import DRIVING, local_copy, place_of
from tests.faults.cluster import local_cluster
from tests.faults.processes import kill_ids, trial_processes
from tests.faults.reference import SMALL, check_survived, undisturbed
from tests.faults.unreliable_store import unreliable_store
from tests.patience import patient
from tests.remote.services import BUCKET, s3_server
from tests.running import kill, started, write_space
from tests.seeds import drawn_seed
from tests.sweeper.records import fields

FULL = pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(5400)])

AWAY_SECONDS = 60.0

Strike = Callable[[subprocess.Popen[str]], bool | None]
"""What befalls a driver; `False` where it did not."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as environment, pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        yield environment


class Nights:
    """Sweeps in a store that are disturbed one after the other until enough blows have fallen."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
        self.folder, self._patch, self._options = folder, monkeypatch, options
        self.seed = drawn_seed()
        print(f"moments drawn with seed {self.seed}")
        self.random = random.Random(self.seed)
        self._space = write_space(folder, SMALL % {"samples": 8})
        self._expected = undisturbed(self._space)
        self._address = f"s3://{BUCKET}/{folder.name}"
        self.fallen = self.given_up = 0

    def run(self, blows: int, strike: Strike, environment: Mapping[str, str] | None = None) -> Iterator[SweepPaths]:
        """Strike until `blows` have fallen, resuming where a driver has ended; yield each sweep, which is sound."""
        for number in itertools.count():
            name, machines = f"night-{number}", itertools.count()
            while not self._driven(name, next(machines), blows, strike, environment or {}):
                pass
            self._patch.setenv("SWEEPER_CACHE", str(self.folder / name / "reader"))
            sweep, copy = local_copy(f"{self._address}/{name}", "results")
            check_survived(SweepPaths(copy / sweep), self._expected)
            print(f"{name}: {self.fallen} blows so far, equal to the undisturbed", flush=True)
            yield SweepPaths(copy / sweep)
            if self.fallen >= blows:
                return

    def _driven(self, name: str, machine: int, blows: int, strike: Strike, environment: Mapping[str, str]) -> bool:
        """Drive a sweep on a fresh machine, to its end or to the end of its driver; return whether it was its own."""
        folder = self.folder / name / f"machine-{machine}"
        folder.mkdir(parents=True)
        self._patch.setenv("SWEEPER_CACHE", str(folder / "cache"))
        paths = SweepPaths(place_of(self._address, DRIVING).folder / name)
        begin = ["run", self._space, "--name", name, "--output", self._address]
        begun = place_of(self._address, DRIVING).has(name)
        command = [*(["resume", f"{self._address}/{name}"] if begun else begin), "--no-mlflow", *self._options]
        with started(*command, cwd=folder, environment={**os.environ, **environment}) as process:
            while self.fallen < blows and self._moment_has_come(paths, process):
                self.fallen += strike(process) is not False
                if process.poll() is not None:
                    return False
            if process.wait(patient(400)) == 0:
                return True
        assert "cannot be used" in _said(folder) and "Traceback" not in _said(folder), _said(folder)
        print(f"{name}, machine {machine} gave up: {_said(folder)}", flush=True)
        self.given_up += 1
        return False

    def _moment_has_come(self, paths: SweepPaths, process: subprocess.Popen[str]) -> bool:
        """Wait until some records more are journaled; return whether the driver is still there."""
        wanted = last_sequence(paths.journal) + self.random.randint(1, 8)
        while last_sequence(paths.journal) < wanted:
            if process.poll() is not None:
                return False
            time.sleep(0.005)
        time.sleep(self.random.choice([0.0, self.random.random() * 0.02, self.random.random() * 0.5]))
        return process.poll() is None


def _said(folder: Path) -> str:
    return (folder / "driver.out").read_text() + (folder / "driver.err").read_text()


def _failures(paths: SweepPaths) -> list[dict[str, object]]:
    return [dict(fields(record)) for record in read_journal(paths.journal) if record.kind == "failed"]


@pytest.mark.parametrize("kills", [FULL])
def test_killed_drivers(service: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    for _ in Nights(tmp_path, monkeypatch, "--cpus", "1").run(kills, kill):
        pass


@pytest.mark.parametrize("kills", [FULL])
def test_killed_trial_processes(service: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    nights = Nights(tmp_path, monkeypatch, "--cpus", "2")

    def strike(process: subprocess.Popen[str]) -> None:
        victims = trial_processes(process.pid)
        if victims:
            kill_ids(nights.random.choice(victims))

    failures = [body for paths in nights.run(kills, strike) for body in _failures(paths)]
    assert failures and all(body["failure"]["kind"] == "crash" and not body["final"] for body in failures)


@pytest.mark.parametrize("kills", [FULL])
def test_killed_nodes(service: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    with local_cluster(2, tmp_path) as cluster:
        nights = Nights(tmp_path, monkeypatch, "--ray", cluster.address)

        def strike(process: subprocess.Popen[str]) -> None:
            cluster.tell(f"kill {nights.random.randrange(2)}")
            cluster.tell("add")

        environment = {key: text for key, text in cluster.environment.items() if key.startswith("RAY_")}
        failures = [body for paths in nights.run(kills, strike, environment) for body in _failures(paths)]
    assert all(body["failure"]["kind"] == "preempted" and not body["failure"]["counts"] for body in failures), failures


@pytest.mark.parametrize("outages", [FULL])
def test_a_store_goes_away(
    service: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outages: int
) -> None:
    nights = Nights(tmp_path, monkeypatch, "--cpus", "2")
    with unreliable_store(service["AWS_ENDPOINT_URL"], nights.seed) as store:
        through = {"AWS_ENDPOINT_URL": store.address}
        for paths in nights.run(outages, lambda _: store.leave(AWAY_SECONDS), through):
            assert all(not body["failure"]["counts"] for body in _failures(paths))
            # A driver may have ended as the store left. One that starts without a store says so and ends at once.
            store.wait_until_back()
        assert nights.given_up == 0, "a driver waits for longer than that"
        assert store.cut_off >= outages


@pytest.mark.parametrize("sweeps", [FULL])
def test_refused_requests(
    service: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweeps: int
) -> None:
    nights = Nights(tmp_path, monkeypatch, "--cpus", "1")
    with unreliable_store(service["AWS_ENDPOINT_URL"], nights.seed) as store:
        store.be_busy(1 / 3)
        through = {"AWS_ENDPOINT_URL": store.address}
        for paths in itertools.islice(nights.run(10**9, lambda _: None, through), sweeps):
            assert not _failures(paths)
        assert store.refused > store.answered / 3
        told = f"{nights.given_up} drivers gave up, said so, and their sweeps were resumed"
        print(f"{store.answered} requests answered, {store.refused} refused; {told}")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_full_disk_beside_one_with_room(service: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that meet it go to the other node, and none of their tries counts."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this machine lets nobody mount")
    try:
        with local_cluster(1, tmp_path) as cluster:
            cluster.tell(f"add {small}")
            nights = Nights(tmp_path, monkeypatch, "--ray", cluster.address)
            environment = {key: text for key, text in cluster.environment.items() if key.startswith("RAY_")}
            (paths,) = nights.run(0, kill, environment)
            failures = _failures(paths)
    finally:
        subprocess.run(["umount", "-l", small], check=True)
    assert failures and all(
        body["failure"]["kind"] == STORAGE and not body["failure"]["counts"] for body in failures
    ), failures

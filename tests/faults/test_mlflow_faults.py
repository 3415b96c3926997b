"""MLflow killed, paused, restarted under real sweeps, drivers killed around its writes: nothing lacks or doubles.

Servers are real, on SQLite and on PostgreSQL. All of this runs by `make test-faults`; by default
`tests.sweeper.tracking.test_sync` kills, pauses and restarts a real server under a follower.
"""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from sweeper.core.ids import SweepPaths, configuration_index
from sweeper.journal.journal import read_journal
from sweeper.journal.reasons import decision_text
from sweeper.journal.state import fold
from sweeper.tracking.mlflow.client import RUN_STATUS
from sweeper.tracking.sync import sync
from tests.faults.disturbed import Disturbed
from tests.faults.processes import Moments, below, kill_ids
from tests.faults.reference import SMALL, check_survived, undisturbed
from tests.mlflow_stores import Server, by_column, expected_points, postgresql, rounded
from tests.running import kill, started, wait_for_records, write_space
from tests.seeds import drawn_seed


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_space(tmp_path_factory.mktemp("space"), SMALL % {"samples": 8})


@pytest.fixture
def draw() -> random.Random:
    seed = drawn_seed()
    print(f"blows drawn with seed {seed}")
    return random.Random(seed)


def check_mlflow(paths: SweepPaths, uri: str) -> None:
    """Assert that a store has one run a trial and every point of the journal once, after a sync that finds no more."""
    sync(paths.root, uri)
    assert sync(paths.root, uri).points == 0
    records = list(read_journal(paths.journal))
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(paths.name)
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    trials = {configuration_index(r.data.tags["trial"]): r for r in runs if r.data.tags["configuration"] != "sweep"}
    (parent,) = (r for r in runs if r.data.tags["configuration"] == "sweep")
    assert len(runs) == len(trials) + 1 and parent.info.status == "FINISHED"
    points = expected_points(records)
    state = fold(records, len(trials))
    for index, run in trials.items():
        assert run.info.status == RUN_STATUS[state.trials[index].status]
        assert run.data.tags["decision"] == decision_text(state.trials[index].decision)
        keys = by_column(run.data.metrics)
        assert keys.keys() == points[index].keys()
        for name, wanted in points[index].items():
            history = client.get_metric_history(run.info.run_id, keys[name])
            found = [(point.step, point.timestamp, rounded(point.value)) for point in history]
            assert len(found) == len(set(found)) and set(found) == wanted, (index, name)


@contextlib.contextmanager
def served(backend: str, folder: Path) -> Iterator[Server]:
    """A running MLflow server on a backend store of its own, `sqlite` or `postgresql`."""
    with postgresql() if backend == "postgresql" else contextlib.nullcontext(f"sqlite:///{folder}/served.db") as store:
        server = Server(store, folder)
        server.start()
        try:
            yield server
        finally:
            server.signal(signal.SIGCONT)
            server.signal(signal.SIGKILL)


class Blows:
    """What can befall a server: each is over after a moment, and the server is there again."""

    def __init__(self, server: Server, draw: random.Random) -> None:
        self._server, self._draw, self.fallen = server, draw, []

    def strike(self, moment: str) -> None:
        kind, pause = self._draw.choice(["killed", "paused", "restarted"]), self._draw.random() * 4
        self.fallen.append(f"{kind} for {pause:.1f} s at {moment}")
        if kind == "paused":
            self._server.signal(signal.SIGSTOP)
            time.sleep(pause)
            self._server.signal(signal.SIGCONT)
            return
        self._server.signal(signal.SIGKILL if kind == "killed" else signal.SIGTERM)
        self._server.process.wait(60)
        time.sleep(pause if kind == "killed" else 0.0)
        self._server.start()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("backend", "blows"), [("sqlite", 20), ("postgresql", 20)])
def test_a_server_is_killed_and_paused(
    space: Path, tmp_path: Path, draw: random.Random, backend: str, blows: int
) -> None:
    environment = {**os.environ, "MLFLOW_HTTP_REQUEST_TIMEOUT": "2"}
    with served(backend, tmp_path) as server:
        struck = Blows(server, draw)
        for number in itertools.count():
            paths = SweepPaths(tmp_path / "results" / f"s{number}")
            options = ["--name", paths.name, "--tracking-uri", server.uri, "--cpus", "1"]
            with started("run", space, *options, cwd=tmp_path, environment=environment) as process:
                moments = Moments(paths, draw.getrandbits(32), server.log)
                while len(struck.fallen) < blows and (moment := moments.draw(process)) is not None:
                    struck.strike(moment)
                assert process.wait(240) == 0, (tmp_path / "driver.err").read_text()
            check_survived(paths, undisturbed(space))
            check_mlflow(paths, server.uri)
            print(f"sweep {number + 1}: {len(struck.fallen)} blows so far, MLflow equals the journal")
            if len(struck.fallen) >= blows:
                break
    print("; ".join(struck.fallen))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_drivers_and_followers_killed_around_writes_to_mlflow(space: Path, tmp_path: Path, draw: random.Random) -> None:
    database = tmp_path / "results" / "mlflow.db"
    disturbed = Disturbed(space, tmp_path, draw.getrandbits(32), "--cpus", "1", mlflow=database)

    def strike(process: subprocess.Popen[str]) -> None:
        followers = below(process.pid, "sweeper.tracking.sync")
        if draw.random() < 0.5:
            # First the one that writes, so that it cannot tidy up after its driver.
            kill_ids(*followers)
        kill(process)

    disturbed.fatal(20, strike, lambda: iter([{**os.environ}]))
    for root in sorted(path.parent for path in database.parent.glob("*/sweep.yaml")):
        check_mlflow(SweepPaths(root), f"sqlite:///{database}")


CLOCK = """
import os, time
_real = time.time
time.time = lambda: _real() - (3600 if os.path.exists({marker!r}) else 0)
"""


@pytest.mark.slow
def test_a_clock_that_jumps_back_by_an_hour_in_the_middle(space: Path, tmp_path: Path, draw: random.Random) -> None:
    paths, marker = SweepPaths(tmp_path / "results" / "s"), tmp_path / "back"
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(CLOCK.format(marker=str(marker)))
    python_path = os.pathsep.join(filter(None, [str(tmp_path / "clock"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": python_path}
    with started("run", space, "--name", "s", "--cpus", "1", cwd=tmp_path, environment=environment) as process:
        wait_for_records(paths, draw.randint(2, 9), process)
        marker.touch()
        assert process.wait(240) == 0, (tmp_path / "driver.err").read_text()
    times = [record.time for record in read_journal(paths.journal)]
    assert times != sorted(times)
    check_survived(paths, undisturbed(space))
    check_mlflow(paths, f"sqlite:///{tmp_path / 'results' / 'mlflow.db'}")

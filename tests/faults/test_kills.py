"""Drivers, trial processes, nodes and heads killed by SIGKILL at random moments of real sweeps.

Moments are drawn by progress: some records further, a checkpoint or a table written whose record is still to come, plus
random milliseconds. Every sweep is compared with the undisturbed one, its decisions recomputed, its tables read
throughout. A kill of a driver and of trial processes runs by default; the full tests, 20 kills each, on Ray, of fork
servers, nodes and heads as well, by `make test-faults`. By default a node is lost in `tests.remote`.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sweeper.journal.journal import read_journal
from sweeper.journal.segments import pieces
from tests.faults.cluster import local_cluster
from tests.faults.disturbed import Disturbed, here
from tests.faults.processes import below, fork_servers, kill_ids, trial_processes, wait_until
from tests.faults.reference import SMALL
from tests.patience import patient
from tests.running import kill, write_space
from tests.seeds import drawn_seed
from tests.sweeper.records import fields

SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]
FULL = pytest.param(20, marks=SLOW)
EVERY = [pytest.param(executor, 20, marks=SLOW) for executor in ("local", "ray")]
"""What carries trials out, and how many blows fall."""


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_space(tmp_path_factory.mktemp("space"), SMALL % {"samples": 8})


@pytest.fixture
def seed() -> int:
    drawn = drawn_seed()
    print(f"kill moments drawn with seed {drawn}")
    return drawn


@pytest.mark.integration
@pytest.mark.parametrize("cpus", ["1", pytest.param("2", marks=SLOW)])
@pytest.mark.parametrize(("executor", "kills"), [("local", 1), *EVERY])
def test_a_killed_driver(space: Path, tmp_path: Path, seed: int, executor: str, cpus: str, kills: int) -> None:
    disturbed = Disturbed(space, tmp_path, seed, "--cpus", cpus, "--executor", executor)
    disturbed.fatal(kills, kill, here)


def cohorts(samples: int) -> str:
    """The small space with trials of two networks in cohorts of eight lanes, two for each trial."""
    return (SMALL % {"samples": samples}).replace("replicates: 2", "replicates: {count: 2, packing: lanes, lanes: 8}")


@pytest.mark.parametrize(("executor", "kills"), [pytest.param("local", 1, marks=SLOW), *EVERY])
def test_a_killed_driver_of_cohorts(tmp_path: Path, seed: int, executor: str, kills: int) -> None:
    """Each trial measures what it measures alone as a cohort, to the bit, and its checkpoint continues anywhere."""
    space = write_space(tmp_path, cohorts(8 if kills == 1 else 24))
    Disturbed(space, tmp_path, seed, "--cpus", "2", "--executor", executor).fatal(kills, kill, here)


@pytest.mark.parametrize(("executor", "kills"), EVERY)
def test_killed_cohorts(tmp_path: Path, seed: int, executor: str, kills: int) -> None:
    """No trial loses a try by a death that it shared, and each that was there is tried alone."""
    space = write_space(tmp_path, cohorts(24))
    failures = _failures_of_killed_processes(
        Disturbed(space, tmp_path, seed, "--cpus", "2", "--executor", executor), kills
    )
    shared = [body["failure"] for body in failures if "shared_with" in body["failure"]["values"]]
    assert shared and not any(failure["counts"] for failure in shared)


@pytest.mark.parametrize("kills", [FULL])
def test_a_killed_driver_whose_journal_has_many_segments(space: Path, tmp_path: Path, seed: int, kills: int) -> None:
    disturbed = Disturbed(space, tmp_path, seed, "--cpus", "1", program="tests.faults.short_segments")
    root = str(Path(__file__).parents[2])

    def beside_the_tests() -> Iterator[dict[str, str]]:
        for environ in here():
            yield {**environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, environ.get("PYTHONPATH")]))}

    disturbed.fatal(kills, kill, beside_the_tests)
    assert sum(piece.sealed for piece in pieces(disturbed.paths(0).journal)) > 2


@pytest.mark.integration
@pytest.mark.parametrize(("executor", "kills"), [("local", 2), *EVERY])
def test_killed_trial_processes(space: Path, tmp_path: Path, seed: int, executor: str, kills: int) -> None:
    disturbed = Disturbed(space, tmp_path, seed, "--cpus", "2", "--executor", executor)
    _failures_of_killed_processes(disturbed, kills)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("kills", [FULL])
def test_killed_nodes_with_their_trials(space: Path, tmp_path: Path, seed: int, kills: int, together: bool) -> None:
    space = write_space(tmp_path, cohorts(24)) if together else space
    with local_cluster(2, tmp_path) as cluster:
        disturbed = Disturbed(space, tmp_path, seed, "--ray", cluster.address)

        def strike(process: subprocess.Popen[str]) -> None:
            cluster.tell(f"kill {disturbed.random.randrange(2)}")
            cluster.tell("add")

        disturbed.survivable(kills, strike, cluster.environment)
    failures = _failures(disturbed, kills)
    assert all(body["failure"]["kind"] == "preempted" and not body["failure"]["counts"] for body in failures), failures


@pytest.mark.parametrize("kills", [FULL])
def test_a_killed_head(space: Path, tmp_path: Path, seed: int, kills: int) -> None:
    """The head of a driver's own cluster: the driver cannot go on without it, and ends by itself."""
    disturbed = Disturbed(space, tmp_path, seed, "--cpus", "2", "--executor", "ray")

    def strike(process: subprocess.Popen[str]) -> None:
        head = below(process.pid, "/gcs_server", "/raylet/raylet")
        kill_ids(*head)
        # A blow after the last report leaves nothing to lose: the sweep ends well.
        # A driver that is between two calls learns of it only when Ray gives its head up, which takes it 60 s.
        if process.wait(patient(180)) != 0:
            # Another process says this for the dead one, a moment later.
            wait_until(lambda: "sweeper resume" in (tmp_path / "driver.err").read_text())

    disturbed.fatal(kills, strike, here)


@pytest.mark.parametrize("kills", [FULL])
def test_a_killed_fork_server(space: Path, tmp_path: Path, seed: int, kills: int) -> None:
    """The trial processes go on without it; the next one needs a new server."""
    disturbed = Disturbed(space, tmp_path, seed, "--cpus", "2", "--executor", "local")
    disturbed.survivable(kills, lambda process: kill_ids(*fork_servers(process.pid)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_head_of_several_nodes(space: Path, tmp_path: Path, seed: int) -> None:
    clusters = []

    def joined() -> Iterator[dict[str, str]]:
        with local_cluster(2, tmp_path) as cluster:
            clusters.append(cluster)
            yield {**cluster.environment, "RAY_ADDRESS": cluster.address}

    def strike(process: subprocess.Popen[str]) -> None:
        clusters[-1].tell("kill head")
        process.wait(patient(60))

    Disturbed(space, tmp_path, seed).fatal(5, strike, joined)


def _failures_of_killed_processes(disturbed: Disturbed, kills: int) -> list[dict[str, Any]]:
    """Kill one of a sweep's trial processes at each blow; return the failures, each a crash that ends no trial."""

    def strike(process: subprocess.Popen[str]) -> None:
        victims = trial_processes(process.pid)
        if victims:
            kill_ids(disturbed.random.choice(victims))

    disturbed.survivable(kills, strike)
    failures = _failures(disturbed, kills)
    assert failures and all(body["failure"]["kind"] == "crash" and not body["final"] for body in failures)
    return failures


def _failures(disturbed: Disturbed, kills: int) -> list[dict[str, Any]]:
    """Return the bodies of all failures of the sweeps that `kills` blows were spread over."""
    journals = [disturbed.paths(number).journal for number in range(kills)]
    return [fields(r) for journal in journals for r in read_journal(journal) if r.kind == "failed"]

"""Experiments of sweeps in MLflow, found and deleted, and its server, which ends with the command."""

import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.journal.segments import sweep_id
from sweeper.tracking import sync as projection
from sweeper.tracking.mlflow.pages import delete_runs, ended_with_this_process, experiments, serve
from tests.alive import running, wait_for_ends
from tests.faults.processes import below
from tests.mlflow_stores import free_port
from tests.patience import patient
from tests.running import started
from tests.seeds import drawn_seed
from tests.sweeper.records import made_body


def test_sweeps_are_listed_and_found_by_name_and_nothing_else_is(random_sweep, tmp_path, uri):
    for name in ("first", "second"):
        sweep = random_sweep(1, name=name, count=2)
        sweep.journal().append(made_body("attempt", {"attempt": 1}))
        projection.sync(sweep.root, uri)
    client = MlflowClient(uri)
    client.create_experiment("somebody's own")
    ids = {name: client.get_experiment_by_name(name).experiment_id for name in ("first-1", "second-1")}
    assert dict(experiments(uri)) == ids
    assert experiments(uri, "first-1") == [("first-1", ids["first-1"])]
    with pytest.raises(SweeperError, match=r"has no sweep 'frist-1'; did you mean 'first-1'\?"):
        experiments(uri, "frist-1")
    first = SweepPaths(tmp_path / "first-1")
    runs = client.search_runs([ids["first-1"]])
    assert {run.data.tags["sweep_id"] for run in runs} == {sweep_id(first.journal)}
    assert delete_runs(uri, first) == len(runs) > 0
    with pytest.raises(SweeperError, match="has no sweep"):
        delete_runs(f"sqlite:///{tmp_path / 'other.db'}", first)
    assert dict(experiments(uri)) == {"second-1": ids["second-1"]} and client.search_runs([ids["second-1"]])


@pytest.mark.slow
def test_no_process_of_the_server_outlives_the_command(tmp_path: Path) -> None:
    number = random.Random(drawn_seed()).choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    print(f"ended by {number.name}")
    port = free_port()
    with started("ui", "--port", str(port), "--output", str(tmp_path), cwd=tmp_path) as process:
        until = time.monotonic() + patient(200)
        while not answers(port):
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "driver.err").read_text()
            time.sleep(0.1)
        servers = below(process.pid, "")
        assert len(servers) > 1, "the server has processes of its own"
        process.send_signal(number)
        assert process.wait(patient(30)) == 0
    assert not running(servers)
    assert not answers(port)


KILLED = """
import subprocess, sys, time
from sweeper.tracking.mlflow.pages import ended_with_this_process
server = subprocess.Popen(["sh", "-c", "sleep 600 & sleep 600"], start_new_session=True)
with ended_with_this_process(server.pid):
    print(server.pid, flush=True)
    time.sleep(600)
"""


def test_the_servers_processes_do_not_outlive_a_command_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        group = int(process.stdout.readline())
        process.kill()
    wait_for_ends(group)


def test_a_group_that_was_ended_in_time_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        with ended_with_this_process(other.pid):
            pass
        assert other.poll() is None
        other.kill()


def test_a_server_is_not_started_for_a_server_or_on_a_port_that_is_taken(uri: str) -> None:
    with pytest.raises(SweeperError, match="is already a server"):
        serve("http://127.0.0.1:5000", 5001)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(SweeperError, match="is taken"):
            serve(uri, taken.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

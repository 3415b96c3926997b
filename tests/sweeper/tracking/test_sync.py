"""The MLflow projection against real stores: complete and never doubled, whatever is killed."""

import contextlib
import copy
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient

from sweeper.core.errors import SweeperError
from sweeper.core.ids import trial_name
from sweeper.journal.journal import read_journal, set_aside_damaged
from sweeper.journal.reasons import decision_text
from sweeper.journal.state import fold
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.tracking import sync as projection
from sweeper.tracking.base import RunUpdate
from sweeper.tracking.follower import Follower
from sweeper.tracking.mlflow.client import RUN_STATUS, MlflowTracker
from sweeper.tracking.mlflow.experiment import SWEEP_TAG
from sweeper.tracking.mlflow.pages import delete_runs, experiments
from tests.alive import wait_for_ends
from tests.mlflow_stores import Server, by_column, expected_points, free_port, postgresql, rounded
from tests.patience import patient
from tests.sweeper.records import fields, made_body, record_names


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    made = Server(f"sqlite:///{folder / 'served.db'}", folder)
    made.start()
    yield made
    if made.process.poll() is None:
        made.signal(signal.SIGKILL)


def assert_complete(sweep: Any, uri: str, *, abandoned: bool = False) -> None:
    """Compare every run, tag, parameter and point in the store with the journal's."""
    records = list(read_journal(sweep.paths.journal))
    state = fold(records, sweep.count)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(sweep.paths.name)
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    children = {int(r.data.tags["configuration"]): r for r in runs if r.data.tags["configuration"] != "sweep"}
    (parent,) = (r for r in runs if r.data.tags["configuration"] == "sweep")
    started = {fields(r)["configuration"] for r in records if "configuration" in fields(r)}
    assert len(runs) == len(children) + 1
    assert not parent.inputs.dataset_inputs
    assert len({run.inputs.dataset_inputs[0].dataset.digest for run in children.values()}) == 1
    assert children.keys() == started
    points = expected_points(records)
    for index, run in children.items():
        trial = state.trials[index]
        status = "interrupted" if abandoned and trial.status == "running" else trial.status
        tags = run.data.tags
        assert (run.info.status, tags["status"]) == (RUN_STATUS[status], status)
        assert tags["mlflow.parentRunId"] == parent.info.run_id
        sign = "○ " if status == "early_stopped" else ""
        assert tags["trial"] == trial_name(index) and run.info.run_name.startswith(f"{sign}{trial_name(index)}")
        assert tags["config_hash"] == sweep.configurations[index].digest
        decision = decision_text(trial.decision) if trial.decision else None
        assert (tags["attempt"], tags.get("decision")) == (str(trial.attempt), decision)
        assert not [key for key in tags if key.startswith("config_") and key != "config_hash"]
        (used,) = run.inputs.dataset_inputs
        assert used.dataset.name == "digits" and json.loads(used.dataset.profile)["num_rows"] == 12
        assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "training")]
        assert (tags["mlflow.source.name"], tags["mlflow.source.type"]) == ("space.yaml", "LOCAL")
        assert (tags["mlflow.source.git.commit"], tags["mlflow.user"]) == ("c0ffee", "somebody")
        loss = sweep.configurations[index]["loss"]
        lr = sweep.configurations[index]["optimizer"]["lr"]
        wanted = {"config_loss_name": loss["name"], "config_optimizer_lr": str(lr), "config_optimizer_momentum": "0.9"}
        wanted |= {"config_loss_gamma": str(loss["gamma"])} if "gamma" in loss else {}
        assert wanted.items() <= run.data.params.items()
        assert (run.info.end_time is None) == (status in ("running", "waiting"))
        if status in ("completed", "early_stopped", "failed"):
            assert run.info.end_time - run.info.start_time == round(1000 * trial.wall_seconds), "time of training"
        metrics = points.get(index, {})
        keys = by_column(run.data.metrics)
        assert keys.keys() == metrics.keys() and len({key.partition("/")[0] for key in keys.values()}) > 1
        assert any(key.startswith("finished/") for key in run.data.metrics) == (trial.status == "completed")
        assert tags["mlflow.note.content"]
        for name in sorted(metrics)[:: 1 if len(metrics) < 8 else 3]:
            history = client.get_metric_history(run.info.run_id, keys[name])
            found = [(m.step, m.timestamp, rounded(m.value)) for m in history]
            assert len(found) == len(set(found))
            assert set(found) == metrics[name], (index, name)
            newest = max(metrics[name])
            assert rounded(run.data.metrics[keys[name]]) == newest[2]


def drive(sweep: Any, steps: int = 10_000, sink: Any = None) -> None:
    """Journal some more of the sweep, as a driver that then dies, or ends when nothing is left."""
    journal = sweep.journal()
    for kind, body in sweep.events(sink.incoming if sink else None, steps):
        record = journal.append(made_body(kind, body))
        if sink:
            sink.append(record)


def with_tables(sweep: Any) -> Any:
    """Drive a sweep to its end and write its tables."""
    sink = sweep.sink()
    drive(sweep, sink=sink)
    sink.close()
    return sweep


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path, uri: str) -> Iterator[str]:
    """Return the address of an empty store: a SQLite file, a real server, or one with a PostgreSQL database."""
    if request.param != "postgresql":
        yield uri if request.param == "sqlite" else request.getfixturevalue("server").uri
        return
    with postgresql() as backend:
        served = Server(backend, tmp_path)
        served.start()
        yield served.uri
        served.signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("store", "seed"),
    [
        ("sqlite", 0), ("sqlite", 1), pytest.param("server", 1, marks=pytest.mark.integration),
        pytest.param("postgresql", 1, marks=pytest.mark.slow),
    ],
    indirect=["store"],
)  # fmt: skip
def test_any_store_equals_the_journal_after_every_sync_and_syncing_again_adds_nothing(
    seed: int, store: str, random_sweep: Any, request: pytest.FixtureRequest
) -> None:
    sweep = random_sweep(seed, name=f"contract-{request.node.callspec.params['store']}", count=4, replicates=1 + seed)
    while len(sweep.ended) < sweep.count:
        drive(sweep, steps=5)
        projection.sync(sweep.root, store)
        assert_complete(sweep, store, abandoned=True)
    again = projection.sync(sweep.root, store)
    assert (again.runs, again.points) == (0, 0)
    assert_complete(sweep, store)


def test_the_parent_carries_tables_report_and_diagram_and_each_diagram_comes_with_the_last_points(
    random_sweep: Any, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = with_tables(random_sweep(2, count=3))
    sweep.paths.report.write_text("<html></html>")
    sent: list[RunUpdate] = []
    write = MlflowTracker.write

    def noting(tracker: MlflowTracker, updates: Iterable[RunUpdate]) -> None:
        sent.extend(kept := list(updates))
        write(tracker, kept)

    monkeypatch.setattr(MlflowTracker, "write", noting)
    monkeypatch.setattr("sweeper.tracking.sync.POINTS_A_PASS", 1)
    projection.sync(sweep.root, uri)
    drawn = [update for update in sent if update.diagram is not None]
    assert len(drawn) == 3 and all(update.points for update in drawn)
    assert len(sent) > 3 + len(drawn), "several passes"
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(sweep.paths.name)
    (parent,) = client.search_runs([experiment.experiment_id], "tags.configuration = 'sweep'")
    assert parent.info.status == "FINISHED"
    best = leaderboard(Results(sweep.root)).best
    shown = {f"recommended/{name}": best[name] for name in ("test_ece",)} | {"recommended/val_nll": best["judged"]}
    logged = {key: value for key, value in parent.data.metrics.items() if key.startswith("recommended/")}
    assert logged == pytest.approx(shown)
    paths = {item.path for item in client.list_artifacts(parent.info.run_id)}
    assert paths == {"tables", "report.html", "sweep.yaml", "reliability_diagram.svg"}
    described = experiment.tags["mlflow.note.content"]
    assert "validation nll" in described.lower() and "Filters for the search box" in described
    children = client.search_runs([experiment.experiment_id], "tags.trial LIKE 'c%'")
    assert len(children) == 3
    for child in children:
        assert [item.path for item in client.list_artifacts(child.info.run_id)] == ["reliability_diagram.svg"]
    tables = {item.path for item in client.list_artifacts(parent.info.run_id, "tables")}
    assert {"tables/trials.parquet", "tables/evaluations.parquet"} <= tables
    diagram = Path(client.download_artifacts(parent.info.run_id, "reliability_diagram.svg", str(tmp_path)))
    assert diagram.read_text().count("<rect") == 2 + 1


@pytest.mark.integration
def test_the_follower_keeps_up_with_a_driver_and_leaves_with_it(random_sweep: Any, tmp_path: Path, uri: str) -> None:
    sweep = random_sweep(3, count=5)
    with Follower(sweep.paths, uri) as follower:
        drive(sweep, 6)
        until = time.monotonic() + patient(60)
        while not (tmp_path / "mlflow.db").exists() and time.monotonic() < until:
            time.sleep(0.1)
        drive(sweep)
        assert follower.wait(patient(60)) == []
    assert_complete(sweep, uri)
    with Follower(sweep.paths, uri) as follower:
        assert follower.wait(patient(60)) == []
    assert_complete(sweep, uri)


def test_the_wait_for_a_tracker_that_lags_behind_counts_its_runs(
    random_sweep: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sweeper.tracking.follower.LOOK_SECONDS", 0.01)
    sweep = random_sweep(3, count=5)
    drive(sweep)
    seen: list[tuple[int, int]] = []
    with Follower(sweep.paths, uri) as follower:
        assert follower.wait(patient(60), lambda *counts: seen.append(counts)) == []
    written = [counts[0] for counts in seen]
    assert len({*written}) > 1 and written == sorted(written)
    assert seen[-1] == (6, 6)  # five trials and the sweep itself
    with Follower(sweep.paths, uri) as follower:
        assert follower.wait(patient(60), lambda *counts: pytest.fail(f"{counts} of a complete tracker")) == []


def test_a_follower_has_the_lowest_priority_in_the_session_of_the_trials(random_sweep: Any, uri: str) -> None:
    sweep = random_sweep(1, count=1)
    with Follower(sweep.paths, uri) as follower:
        pid = follower._process.pid
        assert os.getsid(pid) == os.getsid(0) and os.getpgid(pid) != os.getpgid(0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19


@pytest.mark.integration
@pytest.mark.parametrize("last", [False, True])
def test_a_killed_follower_is_started_once_more(random_sweep: Any, uri: str, last: bool) -> None:
    """In the middle of a sweep, or after its last record."""
    sweep = random_sweep(3, count=3)
    with Follower(sweep.paths, uri) as follower:
        drive(sweep, 10_000 if last else 6)
        follower._process.kill()
        if not last:
            follower._process.wait()
            follower.keep_alive()
            drive(sweep)
        assert follower.wait(patient(60)) == [
            "the process that fills MLflow was killed and started again; MLflow is complete"
        ]
    assert_complete(sweep, uri)


DRIVER = """
import os, sys, time
from pathlib import Path
from sweeper.core.ids import SweepPaths
from sweeper.tracking.follower import Follower
with Follower(SweepPaths(Path(sys.argv[1])), sys.argv[2]) as follower:
    print(follower._process.pid, flush=True)
    time.sleep(100)
"""


def test_sweeps_may_share_an_experiment_with_a_name_of_its_own(random_sweep: Any, uri: str) -> None:
    sweeps = [random_sweep(n, name=f"part{n}", count=2) for n in (1, 2)]
    for sweep in sweeps:
        text = sweep.paths.sweep_file.read_text()
        sweep.paths.sweep_file.write_text(text.replace("experiment: null", "experiment: /Users/me/calibration"))
        drive(sweep)
        projection.sync(sweep.root, uri)
    (experiment,) = [e for e in MlflowClient(uri).search_experiments() if SWEEP_TAG in e.tags]
    assert experiment.name == "/Users/me/calibration"
    runs = MlflowClient(uri).search_runs([experiment.experiment_id], max_results=100)
    assert {run.data.tags["sweep"] for run in runs} == {sweep.paths.name for sweep in sweeps}
    assert [each[1] for each in experiments(uri, sweeps[0].paths.name)] == [experiment.experiment_id]
    assert delete_runs(uri, sweeps[0].paths) == 3
    left = MlflowClient(uri).search_runs([experiment.experiment_id], max_results=100)
    assert {run.data.tags["sweep"] for run in left} == {sweeps[1].paths.name}


@pytest.mark.integration
def test_a_killed_driver_leaves_no_run_that_seems_to_run_and_no_process(random_sweep: Any, uri: str) -> None:
    sweep = random_sweep(4, count=4)
    drive(sweep, 5)
    command = [sys.executable, "-c", DRIVER, str(sweep.root), uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        pid = int(driver.stdout.readline())
        driver.kill()
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, 0)  # else its few seconds of work take minutes beside busy cores
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("0")
    wait_for_ends(pid, seconds=60)
    assert_complete(sweep, uri, abandoned=True)
    drive(sweep)
    projection.sync(sweep.root, uri)
    assert_complete(sweep, uri)


@pytest.mark.integration
def test_a_server_killed_and_paused(server: Server, random_sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    sweep = random_sweep(5, name="restarted", count=6)
    with Follower(sweep.paths, server.uri) as follower:
        drive(sweep, 6)
        wait_for_run(server.uri, sweep.paths.name)
        server.signal(signal.SIGSTOP)
        drive(sweep, 4)
        time.sleep(3)
        server.signal(signal.SIGCONT)
        server.signal(signal.SIGKILL)
        drive(sweep)
        notes = follower.wait(0.1)
    assert notes
    with pytest.raises(SweeperError, match="cannot write to MLflow"), monkeypatch.context() as patch:
        patch.setattr(projection, "SYNC_TRIES", 1)
        projection.sync(sweep.root, server.uri)
    server.start()
    projection.sync(sweep.root, server.uri)
    assert_complete(sweep, server.uri)


@pytest.mark.integration
@pytest.mark.parametrize("listens", [True, False])
def test_a_hanging_store_is_not_waited_for(random_sweep: Any, monkeypatch: pytest.MonkeyPatch, listens: bool) -> None:
    """A server that takes connections and never answers one; none at all."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    sweep = random_sweep(13, count=2)
    drive(sweep)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        with Follower(sweep.paths, f"http://127.0.0.1:{silent.getsockname()[1]}") as follower:
            (note,) = follower.wait(patient(200))
    assert "see mlflow.log" in note and f"`sweeper manage sync {sweep.paths.name} --output" in note


def wait_for_run(uri: str, name: str) -> None:
    client, until = MlflowClient(uri), time.monotonic() + patient(60)
    while time.monotonic() < until:
        experiment = client.get_experiment_by_name(name)
        if experiment is not None and client.search_runs([experiment.experiment_id]):
            return
        time.sleep(0.2)
    raise TimeoutError("the follower logged nothing")


def test_runs_that_were_created_twice_or_deleted_come_down_to_one(random_sweep: Any, uri: str) -> None:
    sweep = random_sweep(6, count=3)
    drive(sweep)
    projection.sync(sweep.root, uri)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(sweep.paths.name).experiment_id
    first, second, *_ = client.search_runs([experiment], "tags.trial LIKE 'c%'")
    identity = ("sweep", "sweep_id", "configuration", "trial", "config_hash")
    client.create_run(experiment, tags={key: first.data.tags[key] for key in identity})
    client.delete_run(second.info.run_id)
    projection.sync(sweep.root, uri)
    assert_complete(sweep, uri)
    assert len(client.search_runs([experiment], run_view_type=ViewType.DELETED_ONLY)) == 1


def test_after_records_were_set_aside_only_what_was_measured_since_is_shown(uri: str, random_sweep: Any) -> None:
    sweep = random_sweep(12, count=4)
    drive(sweep, 3)
    again, kept = copy.deepcopy(sweep), len(record_names(sweep.paths.journal))
    for _ in range(2):
        sweep = copy.deepcopy(again)
        sweep.time += 1000 * (1 + len(list(sweep.paths.journal.glob("*.damaged"))))
        drive(sweep)
        projection.sync(sweep.root, uri)
        assert_complete(sweep, uri)
        victim = sweep.paths.journal / record_names(sweep.paths.journal)[kept]
        victim.write_bytes(victim.read_bytes()[:-1])
        assert set_aside_damaged(sweep.paths.journal)
    drive(again)
    projection.sync(again.root, uri)
    assert_complete(again, uri)
    assert projection.sync(again.root, uri).points == 0
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(again.paths.name).experiment_id
    deleted = client.search_runs([experiment], run_view_type=ViewType.DELETED_ONLY)
    assert len(deleted) == 2 * len(client.search_runs([experiment]))


def test_a_second_writer_and_an_empty_journal_are_refused_with_a_sentence(random_sweep: Any, uri: str) -> None:
    sweep = random_sweep(8, count=2)
    with pytest.raises(SweeperError, match="has no journal yet"):
        projection.sync(sweep.root, uri)
    with (
        projection.Projection(sweep.root, uri).alone(0),
        pytest.raises(SweeperError, match="another process is writing to MLflow"),
    ):
        projection.sync(sweep.root, uri)


def test_passwords_in_addresses_are_never_shown(random_sweep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = random_sweep(9, count=2)
    drive(sweep, 3)
    monkeypatch.setattr(projection, "SYNC_TRIES", 1)
    with pytest.raises(SweeperError) as caught:
        projection.sync(sweep.root, f"http://someone:hunter2@127.0.0.1:{free_port()}")
    assert "hunter2" not in str(caught.value)
    assert "***@127.0.0.1" in str(caught.value)

"""A real MLflow store: recalibrations on the trials' runs, never doubled; data sets; the machine's system metrics."""

import json
import time
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from sweeper.results import Results
from sweeper.results.recalibrating import recalibrate
from sweeper.results.recalibration import read_requests
from sweeper.space.loading import load_spec
from sweeper.storage.sweeps import Sweep
from sweeper.tracking import sync as projection
from sweeper.tracking.mlflow.client import used_dataset
from sweeper.tracking.sync import Projection
from tests.sweeper.records import made_body
from tests.sweeper.tracking.test_sync import with_tables

RECORDED = {
    "name": "digits", "label_noise": 0.0, "samples": {"train": 6, "val": 4, "test": 2}, "classes": 10,
    "split_hash": "ab",
}  # fmt: skip


def test_the_sweeps_own_data_set_has_sizes_and_the_hash_of_its_splits():
    used = used_dataset({"name": "digits", "label_noise": 0.0}, RECORDED)
    profile = json.loads(used.profile)
    assert profile == {
        "num_rows": 12, "train": 6, "val": 4, "test": 2, "classes": 10, "split_hash": "ab", "label_noise": 0.0
    }  # fmt: skip
    assert used.name == "digits" and len(used.digest) == 16
    assert (used.source_type, json.loads(used.source)["tags"]["mlflow.source.name"]) == (
        "code", "trainables.datasets: digits"
    )  # fmt: skip


def test_digests_tell_data_sets_apart():
    own = {"name": "digits", "label_noise": 0.0}
    digests = [
        used_dataset(own, RECORDED).digest,
        used_dataset(own, {**RECORDED, "split_hash": "cd"}).digest,
        used_dataset({**own, "label_noise": 0.1}, RECORDED).digest,
        used_dataset({"name": "svhn"}, RECORDED).digest,
    ]
    assert len(set(digests)) == 4 and used_dataset(dict(reversed(own.items())), RECORDED).digest == digests[0]
    assert "num_rows" not in json.loads(used_dataset({**own, "label_noise": 0.1}, RECORDED).profile)


def test_a_folder_is_its_own_source(tmp_path):
    used = used_dataset({"name": "image_folder", "folder": str(tmp_path)}, {})
    assert (used.source_type, json.loads(used.source)) == ("local", {"uri": tmp_path.as_uri()})
    own = used_dataset({"name": "own_components:spirals"}, {})
    assert json.loads(own.source)["tags"]["mlflow.source.name"] == "own_components:spirals"


def test_sync_logs_recalibrations_once(random_sweep: Any, uri: str) -> None:
    made = with_tables(random_sweep(3, count=2))
    sweep = Sweep(made.paths, load_spec("quickstart"), made.configurations)
    projection.sync(made.paths.root, uri)
    recalibrate(sweep, read_requests(["temperature"], [], [3]))
    assert projection.sync(made.paths.root, uri).points > 0
    before = projection.sync(made.paths.root, uri)
    assert before.points == before.runs == 0
    recalibrate(sweep, read_requests(["temperature"], [], [3]))
    assert projection.sync(made.paths.root, uri).points == 0, "the same rows are nothing new"
    recalibrate(sweep, read_requests([], [], [2]))
    assert projection.sync(made.paths.root, uri).points > 0

    client, key = MlflowClient(uri), "recalibrated_temperature_bins3/test_ece"
    runs = client.search_runs([client.get_experiment_by_name(made.paths.name).experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    logged = {
        (run.data.tags.get("trial"), point.step): point.value
        for run in runs
        for point in client.get_metric_history(run.info.run_id, key)
    }
    rows = Results(made.paths.root).rows(
        "SELECT trial, epoch, avg(ece) AS ece FROM recalibrations WHERE method = 'temperature' AND split = 'test' "
        "GROUP BY ALL ORDER BY trial, epoch"
    )
    assert len(logged) == len(rows) > 0
    for row in rows:
        assert logged[row["trial"], row["epoch"]] == pytest.approx(row["ece"])


def test_system_metrics_where_asked_for(random_sweep: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = random_sweep(3, count=2)
    journal = sweep.journal()
    for kind, body in sweep.events(None, 3):
        if kind != "ended":
            journal.append(made_body(kind, body))
    running = Projection(sweep.root, uri)
    running.prepare()
    assert running.begin()
    running.advance()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(sweep.paths.name)
    (parent,) = client.search_runs([experiment.experiment_id], "tags.configuration = 'sweep'")

    def logged() -> list[Any]:
        return list(client.get_metric_history(parent.info.run_id, "system/cpu_utilization_percentage"))

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    running.watch_machine()
    time.sleep(0.5)
    assert not logged(), "nobody asked for them"
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    running.watch_machine()
    deadline = time.monotonic() + 30
    while not logged() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert logged() and all(0 <= point.value <= 100 for point in logged())
    client.set_terminated(parent.info.run_id)  # which ends MLflow's thread

"""System metrics: sampled when due and on request alone, and they reach the sweep's own run."""

from __future__ import annotations

from mlflow.tracking import MlflowClient

from sweeper.tracking.projection import Projection
from sweeper.tracking.system_metrics import INTERVAL, MOST_SAMPLES, SWITCH, SystemMetrics, requested
from tests.sweeper.records import made_body


def test_samples_are_taken_when_due_and_become_rarer(tmp_path):
    now = [1000.0]
    metrics = SystemMetrics(tmp_path, 10.0, lambda: now[0])
    assert metrics.take() == []
    seen = []
    for second in range(1000, 1000 + 10 * MOST_SAMPLES + 100):
        now[0] = float(second)
        seen += metrics.take()
    cpu = [point for point in seen if point.key == "system/cpu_utilization_percentage"]
    assert [point.step for point in cpu] == list(range(MOST_SAMPLES + 4))
    assert cpu[0].timestamp == 1_010_000 and cpu[-1].timestamp - cpu[-2].timestamp == 20_000
    assert all(0 <= point.value <= 100 for point in seen if point.key.endswith("percentage"))


def test_they_are_asked_for_by_mlflows_own_switch(tmp_path, monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    assert requested(tmp_path) is None
    monkeypatch.setenv(SWITCH, "true")
    assert requested(tmp_path) is not None


def test_they_reach_the_sweeps_run(random_sweep, tmp_path, monkeypatch):
    monkeypatch.setenv(SWITCH, "true")
    monkeypatch.setenv(INTERVAL, "1e-9")
    sweep = random_sweep(3, count=2)
    sweep.write_spec()
    journal = sweep.journal()
    for kind, body in sweep.events(None, 3):
        journal.append(made_body(kind, body))
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    projection = Projection(sweep.root, uri)
    projection.system = requested(tmp_path)
    projection.prepare()
    assert projection.begin()
    projection.advance()
    projection.advance()
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(sweep.paths.name)
    (parent,) = client.search_runs([experiment.experiment_id], "tags.configuration = 'sweep'")
    history = client.get_metric_history(parent.info.run_id, "system/cpu_utilization_percentage")
    assert [point.step for point in history] == [0, 1]

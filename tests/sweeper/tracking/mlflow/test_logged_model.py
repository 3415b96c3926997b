"""An exported model in MLflow: it loads from the registry, its metrics belong to it, its data set and its run."""

import json
import signal

import mlflow
import numpy as np
import pytest
from mlflow.tracking import MlflowClient

import sweeper
from sweeper.exporting.program import raw_batches
from sweeper.journal.segments import sweep_id
from sweeper.tracking import sync as projection
from sweeper.tracking.mlflow.logged_model import _run_of
from sweeper.tracking.mlflow.pages import experiments
from tests.mlflow_stores import Server
from tests.sweeper.exporting.swept import DIGITS, calibrated, swept
from tests.sweeper.tracking.test_sync import drive
from trainables.datasets import load_dataset


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return swept(tmp_path_factory.mktemp("logged"), "digits", *DIGITS)


@pytest.fixture(params=["sqlite", "server"])
def store(request, tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    if request.param == "sqlite":
        yield uri
        return
    server = Server(uri, tmp_path)
    server.start()
    yield server.uri
    server.signal(signal.SIGKILL)


@pytest.mark.slow
def test_a_registered_model_gives_the_sweeps_probabilities_and_its_metrics_belong_to_it(digits, store, tmp_path):
    output = digits.root.parent
    with pytest.raises(sweeper.SweeperError, match=r"has no run of c0000\d of the sweep 'digits'"):
        sweeper.export("digits", tmp_path / "early", output=output, mlflow=True, tracking_uri=store)
    projection.sync(digits.root, store)
    done = [
        sweeper.export("digits", tmp_path / str(n), output=output, register="winner", tracking_uri=store)
        for n in range(2)
    ]
    assert "registered as winner, version 2, alias best" in str(done[1])

    client = MlflowClient(tracking_uri=store, registry_uri=store)
    assert client.get_model_version_by_alias("winner", "best").version in (2, "2")
    experiment = client.get_experiment_by_name("digits")
    models = client.search_logged_models([experiment.experiment_id])
    assert len(models) == 2
    model = client.get_logged_model(client.get_model_version_by_alias("winner", "best").source.removeprefix("models:/"))
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": "winner", "version": "2"}]
    run = client.get_run(model.source_run_id)
    assert run.data.tags["trial"] == done[1].trial
    assert {output.model_id for output in run.outputs.model_outputs} == {each.model_id for each in models}
    (used,) = run.inputs.dataset_inputs
    linked = {metric.key: metric for metric in model.metrics}
    told = done[1].description["metrics"]["test"]["ece"]
    assert linked["calibrated_test_ece"].value == pytest.approx(told, abs=1e-12)
    assert {(m.dataset_name, m.dataset_digest) for m in linked.values()} == {("digits", used.dataset.digest)}
    assert json.loads(used.dataset.profile)["test"] == 359

    mlflow.set_tracking_uri(store)
    mlflow.set_registry_uri(store)
    try:
        loaded = mlflow.pyfunc.load_model("models:/winner@best")
        by_id = mlflow.pyfunc.load_model(f"models:/{model.model_id}")
        example = by_id.metadata.load_input_example()
    finally:
        mlflow.set_tracking_uri(None)
        mlflow.set_registry_uri(None)
    raw = next(raw_batches(load_dataset("digits"), 1000)).numpy()
    expected = calibrated(digits, done[1].trial, [0])
    for each in (loaded, by_id):
        assert np.abs(each.predict(raw) - expected).max() < 1e-5
    assert loaded.metadata.signature.inputs.inputs[0].shape == (-1, 1, 8, 8)
    assert np.array_equal(example, raw[:1])


def test_a_model_belongs_to_its_own_sweep_and_not_to_another_of_that_name(random_sweep, uri):
    sweeps = [random_sweep(7, name=f"{place}/same", count=2) for place in ("here", "there")]
    for number, sweep in enumerate(sweeps):
        sweep.time += 1000 * number
        drive(sweep)
        projection.sync(sweep.root, uri)
    client = MlflowClient(uri)
    assert len(experiments(uri, "same-7")) == 2
    for sweep in sweeps:
        run = _run_of(client, sweep.paths, {"trial": "c00001", "replicates": [0]}, uri)
        assert run.data.tags["sweep_id"] == sweep_id(sweep.paths.journal)
    client.set_tag(run.info.run_id, "attempt", "7")
    with pytest.raises(sweeper.SweeperError, match=r"has no run of c00001 of the sweep 'same-7' as it is now"):
        _run_of(client, sweeps[1].paths, {"trial": "c00001", "replicates": [0]}, uri)


@pytest.mark.slow
def test_a_server_that_is_not_there_is_said_in_a_sentence_and_the_model_is_kept(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(sweeper.SweeperError, match=r"is written, but MLflow at http://127\.0\.0\.1:9 refused it"):
        sweeper.export(
            "digits", tmp_path / "model", output=digits.root.parent, mlflow=True, tracking_uri="http://127.0.0.1:9"
        )
    assert sweeper.load_model(tmp_path / "model").class_names

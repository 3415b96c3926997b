"""A sweep whose results lie in a store goes home, too: its checkpoints are fetched, or its trial is trained again."""

import numpy as np
import pytest

import sweeper
from sweeper.core.ids import SweepPaths
from sweeper.exporting.program import raw_batches
from tests.remote.services import BUCKET, s3_server
from tests.sweeper.exporting.swept import DIGITS, SPACE, calibrated
from trainables.datasets import load_dataset
from trainables.files.stores.object_store import Store

pytestmark = pytest.mark.slow


def test_a_network_of_a_sweep_in_a_store_is_exported(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "digits.yaml").write_text(SPACE % DIGITS)
    with s3_server(tmp_path) as environment:
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        output = f"s3://{BUCKET}/team"
        done = sweeper.run(tmp_path / "digits.yaml", output=output, mlflow=False, executor="local")
        best = sweeper.export("digits", tmp_path / "best", output=output)
        kept = {name.split("/")[1] for name in Store(f"{output}/digits").entries("checkpoints")}
        (lost,) = {"c00000", "c00001"} - kept
        with pytest.raises(sweeper.SweeperError, match=f"the weights of {lost} are gone"):
            sweeper.export("digits", tmp_path / "lost", trial=lost, output=output)
        again = sweeper.export("digits", tmp_path / "again", trial=lost, retrain=True, output=output)
    assert kept == {best.trial} and best.again is None and again.again == 0.0
    raw = next(raw_batches(load_dataset("digits"), 1000))
    for exported in (best, again):
        found = sweeper.load_model(exported.folder).predict(raw)
        expected = calibrated(SweepPaths(done.folder), exported.trial, [0])
        assert np.abs(found.double().numpy() - expected).max() < 1e-5

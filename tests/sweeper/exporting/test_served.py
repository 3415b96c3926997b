"""An exported model is one of MLflow's: loaded by it, and served over HTTP where this project is not on the path."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from sweeper.exporting.folder import PROGRAM
from sweeper.exporting.mlflow_files import write_mlflow_files
from sweeper.exporting.program import CalibratedNetworks, exported_program
from tests.patience import patient
from trainables.models import build_model

SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> tuple[Path, np.ndarray, np.ndarray]:
    """Return an exported folder, samples, and their probabilities."""
    folder = tmp_path_factory.mktemp("served")
    torch.manual_seed(0)
    module = CalibratedNetworks([build_model("resnet8", SHAPE, 10).eval()], None).eval()
    torch.export.save(exported_program(module, torch.zeros(3, *SHAPE)), folder / PROGRAM)
    write_mlflow_files(folder, {"input": {"shape": SHAPE, "dtype": "float32"}, "output": {"classes": 10}})
    samples = torch.randn(300, *SHAPE)
    with torch.no_grad():
        return folder, samples.numpy(), module(samples).numpy()


def test_mlflow_loads_it_with_its_signature(served):
    import mlflow.pyfunc

    folder, samples, expected = served
    model = mlflow.pyfunc.load_model(str(folder))
    assert np.abs(model.predict(samples) - expected).max() < 1e-6
    assert model.metadata.signature.inputs.inputs[0].shape == (-1, *SHAPE)
    with pytest.raises(mlflow.exceptions.MlflowException):
        model.predict(samples[:, :, :4])


@pytest.mark.slow
def test_it_answers_over_http_with_the_same_probabilities(served, tmp_path):
    folder, samples, expected = served
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # MLflow starts the web server by its name.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", str(folder), "--env-manager", "local"]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
            cwd=tmp_path, env=environment | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"},
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        until = time.monotonic() + patient(120)
        while not _answers(f"http://127.0.0.1:{port}/ping"):
            assert server.poll() is None and time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.5)
        body = json.dumps({"inputs": samples.tolist()}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = np.asarray(json.loads(answer.read())["predictions"])
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
    assert np.abs(found - expected).max() < 1e-5


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False

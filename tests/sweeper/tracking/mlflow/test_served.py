"""An exported model is one of MLflow's; trained ones answer over HTTP with the sweep's own probabilities."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import sweeper
from sweeper.core.ids import SweepPaths
from sweeper.exporting.folder import DESCRIPTION, PROGRAM
from sweeper.exporting.program import CalibratedNetworks, RawNetworks, exported_program, raw_batches, reader_for
from sweeper.tracking.mlflow.model_files import write_mlflow_files
from tests.mlflow_stores import free_port
from tests.patience import patient
from tests.sweeper.exporting.swept import DIGITS, MIXED, OWN, calibrated, odd_table, swept, swept_images
from trainables.datasets import load_dataset
from trainables.datasets.raw_inputs import Numbers, described
from trainables.models import build_model

ROOT = Path(__file__).parents[4]
SHAPE = (1, 8, 8)


def test_mlflow_loads_it_with_its_signature(tmp_path):
    import mlflow.pyfunc

    torch.manual_seed(0)
    module = CalibratedNetworks([build_model("resnet8", SHAPE, 10).eval()], None).eval()
    torch.export.save(exported_program(module, torch.zeros(3, *SHAPE)), tmp_path / PROGRAM)
    samples = torch.randn(300, *SHAPE)
    reader = Numbers(SHAPE, "float32")
    (tmp_path / DESCRIPTION).write_text(json.dumps({"input": described(reader)}))
    write_mlflow_files(tmp_path, 10, reader, samples[:1].numpy())
    with torch.no_grad():
        expected = module(samples).numpy()
    model = mlflow.pyfunc.load_model(str(tmp_path))
    assert np.abs(model.predict(samples.numpy()) - expected).max() < 1e-6
    assert model.metadata.signature.inputs.inputs[0].shape == (-1, *SHAPE)
    assert np.array_equal(model.metadata.load_input_example(str(tmp_path)), samples[:1].numpy())
    with pytest.raises(mlflow.exceptions.MlflowException):
        model.predict(samples.numpy()[:, :, :4])


def test_mlflow_takes_rows_by_column_name_and_answers_with_every_fault(tmp_path):
    import mlflow.pyfunc

    odd_table().to_csv(tmp_path / "rows.csv", index=False)
    data = load_dataset("table", file=str(tmp_path / "rows.csv"), target="kind", split="part")
    torch.manual_seed(0)
    module = RawNetworks(data, CalibratedNetworks([build_model("mlp", data.input_shape, 3)], None)).eval()
    raw, reader, to = next(raw_batches(data, 1000)), reader_for(data), tmp_path / "model"
    to.mkdir()
    torch.export.save(exported_program(module, raw), to / PROGRAM)
    (to / DESCRIPTION).write_text(json.dumps({"input": described(reader)}))
    write_mlflow_files(to, 3, reader, raw[:1].numpy())
    with torch.no_grad():
        expected = module(raw).numpy()
    model, rows = mlflow.pyfunc.load_model(str(to)), odd_table().query("part == 'test'")
    assert [column.name for column in model.metadata.signature.inputs.inputs] == [MIXED, "True", "colour", "made"]
    assert np.abs(model.predict(rows[rows.columns[::-1]]) - expected).max() < 1e-6
    assert np.abs(model.predict(model.metadata.load_input_example(str(to))) - expected[:1]).max() < 1e-6
    with pytest.raises(mlflow.exceptions.MlflowException) as refused:
        model.predict(rows.assign(colour="pink", made=3))
    assert "colour = 'pink' in row 0" in refused.value.message and "made holds int64" in refused.value.message


@dataclass(frozen=True)
class Trained:
    """An export, the raw inputs of the whole test split, and the sweep's probabilities of them."""

    folder: Path
    samples: np.ndarray
    expected: np.ndarray


def exported(paths: SweepPaths, to: Path, replicate: str = "0") -> Trained:
    """Export the best trial of a sweep."""
    done = sweeper.export(paths.name, to, replicate=replicate, output=paths.root.parent)
    samples = next(raw_batches(load_dataset(**done.description["source"]["dataset"]), 1000)).numpy()
    return Trained(to, samples, calibrated(paths, done.trial, done.replicates))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Trained]:
    """Return exports of three sweeps: digits, images with a network of timm's, components of one's own."""
    folder = tmp_path_factory.mktemp("trained")
    sweeps = {
        "digits": swept(folder / "digits", "digits", *DIGITS),
        "images": swept_images(folder),
        "own": swept(folder / "own", "own", *OWN),
    }
    return {
        name: exported(paths, folder / "models" / name, "all" if name == "own" else "0")
        for name, paths in sweeps.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "images", "own"])
def test_mlflow_serves_the_sweeps_probabilities(name, trained, tmp_path, record_property):
    model, port = trained[name], free_port()
    command = ["-m", "mlflow", "models", "serve", "--model-uri", str(model.folder), "--env-manager", "local"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    with server([*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"], tmp_path, environment) as up:
        up(f"http://127.0.0.1:{port}/ping")
        found = answer(f"http://127.0.0.1:{port}/invocations", model.samples)
    held(name, found, model.expected, record_property)


@pytest.mark.slow
def test_ray_serve_serves_the_sweeps_probabilities(trained, tmp_path, record_property):
    pytest.importorskip("grpc_reflection", reason="Ray Serve's packages are an extra: calibration-sweeper[ray-serve]")
    port = free_port()
    few = [{"name": "CalibratedModel", "ray_actor_options": {"num_cpus": 0.5}}]  # three models on two cores
    applications = [
        {
            "deployments": few, "name": name, "route_prefix": f"/{name}", "args": {"model": str(model.folder)},
            "import_path": "search_spaces.examples.serve_with_ray:application",
        }
        for name, model in trained.items()
    ]  # fmt: skip
    config = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": applications}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = ["-m", "ray.serve.scripts", "run", "--address", "local", "config.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": os.environ.get("RAY_TMPDIR", "/tmp")}
    with server(command, tmp_path, environment) as up:
        up(f"http://127.0.0.1:{port}/-/healthz")
        for name, model in trained.items():
            up(f"http://127.0.0.1:{port}/{name}", refused=False)
            found = answer(f"http://127.0.0.1:{port}/{name}", model.samples)
            held(f"{name}_ray", found, model.expected, record_property)
        picture = trained["images"].folder.parents[1] / "images" / "red" / "7.png"
        seen = answer(f"http://127.0.0.1:{port}/images", picture.read_bytes(), "image/png")
        here = sweeper.load_model(trained["images"].folder).predict(Image.open(picture))
        assert np.abs(seen - here.numpy()).max() < 1e-6
        with pytest.raises(urllib.error.HTTPError) as refused:
            answer(f"http://127.0.0.1:{port}/digits", model.samples[:2, :1])
        assert refused.value.code == 400 and "the model cannot take int64" in refused.value.read().decode()
        with pytest.raises(urllib.error.HTTPError) as refused:
            answer(f"http://127.0.0.1:{port}/digits", b"no picture", "image/png")
        assert refused.value.code == 400


def held(name: str, found: np.ndarray, expected: np.ndarray, record_property) -> None:
    """Compare all samples and keep the worst difference with the test's result."""
    assert found.shape == expected.shape and len(found) > 40
    worst = np.abs(found - expected).max()
    record_property(f"{name}_worst_of_{len(found)}", float(worst))
    print(f"{name}: {len(found)} samples, worst difference {worst:.2g}")
    assert worst < 1e-5


@contextmanager
def server(command: Sequence[str], folder: Path, environment: dict[str, str]) -> Iterator[object]:
    """Run a server of our own; give what waits for one of its addresses, and end it with all it has started."""
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"  # MLflow starts uvicorn
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    until = time.monotonic() + patient(180)

    def up(url: str, *, refused: bool = True) -> None:
        while not answers(url, refused=refused):
            assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.5)

    try:
        yield up
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def answer(url: str, samples: np.ndarray | bytes, kind: str = "application/json") -> np.ndarray:
    """Return the probabilities that a server answers with."""
    body = samples if isinstance(samples, bytes) else json.dumps({"inputs": samples.tolist()}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": kind})
    with urllib.request.urlopen(request, timeout=patient(60)) as answered:
        return np.asarray(json.loads(answered.read())["predictions"])


def answers(url: str, *, refused: bool) -> bool:
    """Whether a server is up; with `refused=False` any answer of the application will do."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answered:
            return bool(answered.status == 200)
    except urllib.error.HTTPError as error:
        return not refused and error.code == 400
    except (urllib.error.URLError, OSError):
        return False

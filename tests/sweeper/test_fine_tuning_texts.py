"""Low-rank adapters on the descriptions of Debian's packages: a sweep over γ and rank, its report, and its program."""

import os
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import sweeper
from sweeper.core.ids import SweepPaths
from tests.sweeper.package_descriptions import SECTIONS, write_packages
from tests.sweeper.tracking.mlflow.test_served import answer, exported, free_port, server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]


def space(file, model):
    """Return the search space over γ and rank, every one trained to the end."""
    text = {"text": "description", "target": "section", "split": "part", "tokenizer": str(model), "length": 32}
    adapted = {"folder": str(model), "lora_rank": {"grid": [1, 16]}, "lora_targets": ["query", "value"]}
    return {
        "dataset": {"name": "text_table", "file": str(file), **text},
        "scheduler": {"name": "none", "max_epochs": 4},
        "replicates": 2,
        "space": {
            "loss": {"name": "focal", "gamma": {"grid": [0, 1, 2, 4]}},
            "architecture": {"name": "transformers", **adapted},
            "optimizer": {"name": "adamw", "lr": 0.003, "batch_size": 64, "schedule": "cosine"},
        },
        "evaluation": {"posthoc": ["temperature"], "curvature": False},
    }


def test_which_gamma_and_rank(tmp_path):
    pytest.importorskip("peft")
    if shutil.which("apt-cache") is None:
        pytest.skip("there is no apt-cache")
    file, model = write_packages(tmp_path)
    rows = pq.read_table(file).to_pylist()
    assert len(rows) >= 10_000 and {row["section"] for row in rows} == set(SECTIONS)
    done = sweeper.run(space(file, model), name="packages", output=tmp_path, mlflow=False)
    assert done.complete
    best = """SELECT config_architecture_lora_rank AS rank, config_loss_gamma AS gamma, avg(accuracy) AS accuracy,
        avg(ece) AS ece FROM final WHERE split = 'test' GROUP BY ALL"""
    found = {(row["rank"], row["gamma"]): row for row in done.results.sql(best).to_pylist()}
    assert len(found) == 8 and max(row["accuracy"] for row in found.values()) > 0.4
    assert found[16, 0]["accuracy"] > found[1, 0]["accuracy"]
    page = (tmp_path / "packages" / "report.html").read_text()
    assert "Which γ" in page and "lora rank" in page
    texts = [row["description"] for row in rows if row["part"] == "test"]
    _serve(exported(SweepPaths(tmp_path / "packages"), tmp_path / "program"), texts[:50], tmp_path)


def _serve(model, texts, folder):
    """Load the program in plain torch and have MLflow serve texts: both give the sweep's probabilities."""
    plain = torch.export.load(model.folder / "program.pt2").module()
    with torch.no_grad():
        alone = plain(torch.from_numpy(model.samples[:50])).numpy()
    assert np.abs(alone - model.expected[:50]).max() < 1e-5
    port, command = free_port(), ["-m", "mlflow", "models", "serve", "--model-uri", str(model.folder)]
    command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    with server(command, folder, environment) as up:
        up(f"http://127.0.0.1:{port}/ping")
        served = answer(f"http://127.0.0.1:{port}/invocations", np.array(texts))
    assert np.abs(served - model.expected[:50]).max() < 1e-5

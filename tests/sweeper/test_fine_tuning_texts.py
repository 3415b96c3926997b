"""Low-rank adapters on the descriptions of Debian's packages: a sweep over γ and rank, its report, and its program."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import sweeper
from tests.sweeper.package_descriptions import SECTIONS, write_packages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]


def space(file, model, **changes):
    """Return the search space over γ and rank."""
    text = {"text": "description", "target": "section", "split": "part", "tokenizer": str(model), "length": 32}
    adapted = {"folder": str(model), "lora_rank": {"choice": [1, 4, 16]}, "lora_targets": ["query", "value"]}
    return {
        "dataset": {"name": "text_table", "file": str(file), **text},
        "scheduler": {"name": "asha", "max_epochs": 6, "grace_epochs": 2, "reduction_factor": 3},
        "samples": 9,
        "replicates": 2,
        "space": {
            "loss": {"one_of": [{"name": "cross_entropy"}, {"name": "focal", "gamma": {"uniform": [0.5, 5]}}]},
            "architecture": {"name": "transformers", **adapted},
            "optimizer": {"name": "adamw", "lr": 0.003, "batch_size": 64, "schedule": "cosine"},
        },
        "evaluation": {"posthoc": ["temperature"], "curvature": False},
        **changes,
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
    query = "SELECT config_architecture_lora_rank AS rank, config_loss_gamma AS gamma FROM trials"
    assert len({row["rank"] for row in done.results.sql(query).to_pylist()}) > 1
    best = "SELECT max(accuracy) AS best FROM evaluations WHERE split = 'test'"
    assert done.results.sql(best).to_pylist()[0]["best"] > 0.4
    page = (tmp_path / "packages" / "report.html").read_text()
    assert "lora_rank" in page or "rank" in page
    sweeper.export("packages", to=tmp_path / "program", output=tmp_path)
    inputs = torch.randint(4, 400, (3, 9), dtype=torch.int32)
    program = sweeper.load_model(tmp_path / "program")
    probabilities = np.asarray(program.predict(inputs))
    assert probabilities.shape == (3, 10) and np.allclose(probabilities.sum(1), 1, atol=1e-5)

"""The files that make an exported model's folder one of MLflow's: `mlflow models serve --model-uri model/`."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from sweeper.exporting import served

CODE, LOADER = "code", "calibrated_model"


def write_mlflow_files(folder: Path, description: Mapping[str, Any]) -> None:
    """Add MLflow's description, environment and loader to an exported model.

    Args:
        folder: with the program.
        description: the contents of `model.json`.
    """
    needed = [f"{name}=={version(name).partition('+')[0]}" for name in ("mlflow", "numpy", "torch")]
    shape = [-1, *description["input"]["shape"]]
    model = {
        "flavors": {
            "python_function": {
                "loader_module": LOADER,
                "code": CODE,
                "env": {"virtualenv": "python_env.yaml"},
                "python_version": platform.python_version(),
            }
        },
        "mlflow_version": version("mlflow"),
        "model_uuid": uuid4().hex,
        "signature": {
            "inputs": _tensor(description["input"]["dtype"], shape),
            "outputs": _tensor("float32", [-1, description["output"]["classes"]]),
            "params": None,
        },
        "utc_time_created": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}",
    }
    environment = {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]}
    (folder / CODE).mkdir()
    shutil.copyfile(served.__file__, folder / CODE / f"{LOADER}.py")
    (folder / "MLmodel").write_text(yaml.safe_dump(model, sort_keys=False), encoding="utf-8")
    (folder / "python_env.yaml").write_text(yaml.safe_dump(environment, sort_keys=False), encoding="utf-8")
    (folder / "requirements.txt").write_text("\n".join(needed) + "\n", encoding="utf-8")


def _tensor(dtype: str, shape: list[int]) -> str:
    return json.dumps([{"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": shape}}])

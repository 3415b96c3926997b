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

import numpy as np
import yaml
from numpy.typing import NDArray

from sweeper.exporting import served

CODE, LOADER = "code", "calibrated_model"
EXAMPLE, SERVED_EXAMPLE = "input_example.json", "serving_input_example.json"
"""The files of one sample, as MLflow reads it and as a client sends it."""


def write_mlflow_files(folder: Path, description: Mapping[str, Any], example: NDArray[np.generic]) -> None:
    """Add MLflow's description, environment, loader and input example to an exported model.

    Args:
        folder: with the program.
        description: the contents of `model.json`.
        example: one sample as the network takes it [1, …].
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
        "saved_input_example_info": {
            "artifact_path": EXAMPLE,
            "serving_input_path": SERVED_EXAMPLE,
            "type": "ndarray",
            "format": "tf-serving",
        },
        "utc_time_created": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}",
    }
    environment = {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]}
    (folder / EXAMPLE).write_text(json.dumps(example.tolist()), encoding="utf-8")
    (folder / SERVED_EXAMPLE).write_text(json.dumps({"inputs": example.tolist()}), encoding="utf-8")
    (folder / CODE).mkdir()
    shutil.copyfile(served.__file__, folder / CODE / f"{LOADER}.py")
    (folder / "MLmodel").write_text(yaml.safe_dump(model, sort_keys=False), encoding="utf-8")
    (folder / "python_env.yaml").write_text(yaml.safe_dump(environment, sort_keys=False), encoding="utf-8")
    (folder / "requirements.txt").write_text("\n".join(needed) + "\n", encoding="utf-8")


def _tensor(dtype: str, shape: list[int]) -> str:
    return json.dumps([{"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": shape}}])

"""MLflow's loader of an exported model. It is copied into the model's folder, so servers do not need this project."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mlflow.exceptions import MlflowException
from numpy.typing import NDArray

#: Number of samples per call of the program. It limits the memory of activations for requests of any size.
BATCH = 256

#: Name under which `trainables.datasets.raw_inputs` is copied next to this file.
READERS = "calibrated_inputs"


class ServedModel:
    """The program as an MLflow `pyfunc` model: raw inputs in, calibrated probabilities out."""

    def __init__(self, folder: Path) -> None:
        """Load the program and the reader of its raw inputs from a model's folder."""
        self._module = torch.export.load(folder / "program.pt2").module()
        description = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        self._reader = importlib.import_module(READERS).reader_of(description["input"], folder)

    @torch.no_grad()
    def predict(self, inputs: Any) -> NDArray[np.float32]:
        """Return calibrated probabilities [N, K] of raw inputs: an array, rows by column name, or texts.

        Raises:
            MlflowException: the model cannot take the inputs; the message has every fault.
        """
        try:
            array = self._reader.array(inputs)
        except ValueError as error:
            # Servers answer with the message of MLflow's own exceptions alone.
            raise MlflowException.invalid_parameter_value(str(error)) from error
        # torch refuses arrays with negative strides, such as flipped images.
        samples = torch.from_numpy(np.ascontiguousarray(array))
        parts = [self._module(samples[at : at + BATCH]) for at in range(0, len(samples), BATCH)]
        return np.asarray(torch.cat(parts).numpy(), dtype=np.float32)


def _load_pyfunc(folder: str) -> ServedModel:
    """Load the model in `folder`. MLflow calls this function by its name."""
    return ServedModel(Path(folder))

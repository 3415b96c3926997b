"""MLflow's loader of an exported model. It is copied into the model's folder, so servers do not need this project."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

#: Number of samples per call of the program. It limits the memory of activations for requests of any size.
BATCH = 256


class ServedModel:
    """The program as an MLflow `pyfunc` model: preprocessed samples in, calibrated probabilities out."""

    def __init__(self, program: Path) -> None:
        """Load the program from its file."""
        self._module = torch.export.load(program).module()

    @torch.no_grad()
    def predict(self, inputs: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return calibrated probabilities [N, K] of samples [N, …], which must have the signature's type."""
        # torch refuses arrays with negative strides, such as flipped images.
        samples = torch.from_numpy(np.ascontiguousarray(inputs))
        parts = [self._module(samples[at : at + BATCH]) for at in range(0, len(samples), BATCH)]
        return np.asarray(torch.cat(parts).numpy(), dtype=np.float32)


def _load_pyfunc(folder: str) -> ServedModel:
    """Load the model in `folder`. MLflow calls this function by its name."""
    return ServedModel(Path(folder) / "program.pt2")

"""What MLflow loads an exported model with: copied into its folder, so that a server does without this project."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

BATCH = 256


class ServedModel:
    """The program as MLflow's `pyfunc` calls it: preprocessed samples in, calibrated probabilities out."""

    def __init__(self, program: Path) -> None:
        """Load the program."""
        self._module = torch.export.load(program).module()

    @torch.no_grad()
    def predict(self, inputs: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return calibrated probabilities [N, K] of samples [N, …] of the signature's type."""
        samples = torch.from_numpy(np.ascontiguousarray(inputs))
        parts = [self._module(samples[at : at + BATCH]) for at in range(0, len(samples), BATCH)]
        return np.asarray(torch.cat(parts).numpy(), dtype=np.float32)


def _load_pyfunc(folder: str) -> ServedModel:
    """Return the model in `folder`; MLflow looks for a function of this name."""
    return ServedModel(Path(folder) / "program.pt2")

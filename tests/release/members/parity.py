"""Is a sum of bits odd?"""

from __future__ import annotations

import numpy as np
import torch

from trainables.datasets.base import DataSet, Split, hash_of_splits
from trainables.registry import Component, Hyperparameter


def parity(samples: int = 900) -> DataSet:
    """Return bits [N, 8] and whether their sum is odd, a third of them in each split."""
    inputs = torch.randint(0, 2, (samples, 8), generator=torch.Generator().manual_seed(0)).float()
    train, val, test = (Split(part, part.sum(1).long() % 2) for part in inputs.chunk(3))
    return DataSet("parity", train, val, test, 2, (8,), hash_of_splits(np.arange(samples)))


COMPONENTS = (
    Component(
        "parity",
        parity,
        (Hyperparameter("samples", "integer", minimum=30, source="ours"),),
        "is a sum of bits odd?",
    ),
)

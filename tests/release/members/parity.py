"""Is a sum of bits odd?"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch

from trainables.datasets.base import DATASETS, DataSet, Split, hash_of_splits


@DATASETS.add("parity", "is a sum of bits odd?")
def parity(samples: Annotated[int, "[30, inf)"] = 900) -> DataSet:
    """Return bits [N, 8] and whether their sum is odd, a third of them in each split.

    Args:
        samples: of all splits together [ours].
    """
    inputs = torch.randint(0, 2, (samples, 8), generator=torch.Generator().manual_seed(0)).float()
    train, val, test = (Split(part, part.sum(1).long() % 2) for part in inputs.chunk(3))
    return DataSet("parity", train, val, test, 2, (8,), hash_of_splits(np.arange(samples)))

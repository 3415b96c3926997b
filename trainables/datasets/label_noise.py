"""Wrong training labels on purpose, to see which loss is confident in its mistakes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainables.registry import Hyperparameter

NOISE_SEED = 0

LABEL_NOISE = Hyperparameter(
    "label_noise",
    "number",
    0.0,
    minimum=0,
    maximum=1,
    open_maximum=True,
    reason="the share of training labels that are flipped",
    source="mukhoti App. B flips a tenth",
)


def flip_labels(targets: NDArray[np.int64], share: float, classes: int, seed: int = NOISE_SEED) -> NDArray[np.int64]:
    """Return labels of which exactly `round(share * N)` were changed to another class, each other one equally likely.

    Symmetric noise (Zhang et al., "Understanding Deep Learning Requires Rethinking Generalization", 2017), but a
    flipped label is never the right one again, so that `share` is what it says.

    Args:
        targets: classes from 0, int [N].
        share: of the labels to flip.
        classes: number of classes K, at least 2 when anything is flipped.
        seed: of the draw.
    """
    random = np.random.RandomState(seed)
    chosen = random.permutation(len(targets))[: round(share * len(targets))]
    flipped = targets.copy()
    flipped[chosen] = (targets[chosen] + random.randint(1, max(2, classes), len(chosen))) % classes
    return flipped

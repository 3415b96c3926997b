"""A metric of one's own: the confidence that the network's worst class does not earn."""

import numpy as np
from numpy.typing import NDArray


def worst_class_gap(probabilities: NDArray[np.float64], targets: NDArray[np.int64], least: int = 5) -> float:
    """Return the largest |mean confidence − accuracy| over predicted classes of at least `least` samples."""
    predicted = probabilities.argmax(axis=1)
    confidence, correct = probabilities.max(axis=1), predicted == targets
    gaps = [
        abs(confidence[predicted == k].mean() - correct[predicted == k].mean())
        for k in range(probabilities.shape[1])
        if (predicted == k).sum() >= least
    ]
    if not gaps:
        raise ValueError(f"no class was predicted for {least} samples or more")
    return float(max(gaps))

"""F1 of each class, averaged."""

from __future__ import annotations

import numpy as np

from trainables.metrics.base import METRICS, Floats, Integers


@METRICS.add(
    "f1",
    "harmonic mean of precision and recall of each class, averaged",
    "van Rijsbergen 1979",
    label="macro F1",
    mode="max",
    range=(0, 1),
    always=True,
    recalibrated=True,
    headline=True,
)
def macro_f1(probabilities: Floats, targets: Integers) -> float:
    """Return the mean over classes that occur of 2·TP/(2·TP + FP + FN), for [N, K] and [N]."""
    classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    hits = np.bincount(targets[predicted == targets], minlength=classes)
    either = np.bincount(predicted, minlength=classes) + np.bincount(targets, minlength=classes)
    seen = either > 0
    return float((2 * hits[seen] / either[seen]).mean())

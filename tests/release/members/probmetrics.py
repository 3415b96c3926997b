"""The post-hoc methods of the package probmetrics (`pip install probmetrics`), by its names."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from probmetrics import calibrators

from trainables.metrics.base import Floats, Integers, softmax64
from trainables.posthoc.base import POSTHOC, Calibrator, validation_data


class ProbmetricsCalibrator(Calibrator):
    """A fitted calibrator of the package, which maps probabilities to probabilities."""

    def __init__(self, method: str, logits: Floats, targets: Integers) -> None:
        """Fit `method` on validation logits [N, K] and targets [N]."""
        super().__init__("probmetrics", {}, logits.shape[1])
        # Some methods have a name, others only a class.
        named = method.endswith("Calibrator") and hasattr(calibrators, method)
        self.fitted = getattr(calibrators, method)() if named else calibrators.get_calibrator(method)
        with torch.random.fork_rng(devices=[]):  # some methods draw; the training's generator must not notice
            torch.manual_seed(0)
            self.fitted.fit(softmax64(logits), targets)

    def _probabilities(self, logits: Floats) -> Floats:
        rows = np.asarray(self.fitted.predict_proba(softmax64(logits)), dtype=np.float64)
        return rows / rows.sum(axis=1, keepdims=True)  # some methods compute in float32


@POSTHOC.add("probmetrics", "a method of the package probmetrics", "Holzmüller et al., probmetrics")
def fit_probmetrics(logits: ArrayLike, targets: ArrayLike, *, method: str) -> ProbmetricsCalibrator:
    """Return the calibrator, fitted on probabilities.

    Args:
        method: name for `get_calibrator`, for example `ts-mix`, or class of `probmetrics.calibrators` [probmetrics].
    """
    return ProbmetricsCalibrator(method, *validation_data(logits, targets))

"""The cheap validation metrics of every epoch, of one network or of all lanes at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from trainables.metrics.binning import calibration_error
from trainables.metrics.probabilities import log_softmax64


def epoch_metrics(logits: Tensor, targets: Tensor, bins: int) -> dict[str, float]:
    """Return an epoch's cheap validation metrics from logits `[N, K]`; not-a-number where these are not finite."""
    array, labels = logits.float().cpu().numpy(), targets.cpu().numpy()
    if not math.isfinite(float(array.sum())):
        return {"val_nll": math.nan, "val_accuracy": math.nan, "val_ece": math.nan}
    log_probabilities = log_softmax64(array)
    prediction = log_probabilities.argmax(axis=1)
    rows = np.arange(len(labels))
    correct = (prediction == labels).astype(np.float64)
    return {
        "val_nll": float(-log_probabilities[rows, labels].mean()),
        "val_accuracy": float(correct.mean()),
        "val_ece": calibration_error(np.exp(log_probabilities[rows, prediction]), correct, bins),
    }


def epoch_metrics_of_lanes(logits: Tensor, targets: Tensor, bins: Sequence[int]) -> list[dict[str, float]]:
    """Return `epoch_metrics` of every lane of `logits` [L, N, K], to the bit, for targets [N] and each lane's bins."""
    arrays, labels = logits.float().cpu().numpy(), targets.cpu().numpy()
    with np.errstate(invalid="ignore"):  # a diverged lane's are not looked at
        log_probabilities = log_softmax64(arrays)
    prediction = log_probabilities.argmax(axis=2)
    of_label = np.take_along_axis(log_probabilities, labels[None, :, None], axis=2)[:, :, 0]
    confidence = np.exp(np.take_along_axis(log_probabilities, prediction[:, :, None], axis=2)[:, :, 0])
    correct = (prediction == labels).astype(np.float64)
    return [
        {
            "val_nll": float(-of_label[lane].mean()),
            "val_accuracy": float(correct[lane].mean()),
            "val_ece": calibration_error(confidence[lane], correct[lane], count),
        }
        if math.isfinite(float(arrays[lane].sum()))
        else {"val_nll": math.nan, "val_accuracy": math.nan, "val_ece": math.nan}
        for lane, count in enumerate(bins)
    ]

"""Calibration, accuracy and selective-prediction metrics of stored probabilities."""

from trainables.metrics import bleu  # registers what it measures
from trainables.metrics.evaluate import (
    METRIC_NAMES,
    SMALLEST_PROBABILITY,
    evaluate_probabilities,
    reliability_bins,
    softmax64,
)

__all__ = ["METRIC_NAMES", "SMALLEST_PROBABILITY", "bleu", "evaluate_probabilities", "reliability_bins", "softmax64"]

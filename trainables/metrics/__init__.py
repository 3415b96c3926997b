"""Metrics of stored probabilities by name; `trainables.metrics.base` explains how to add one.

Metrics import numpy. scipy and torch are imported inside the functions that need them, because code that only reads
results imports this package for labels.
"""

from trainables.metrics.base import METRICS, SMALLEST_PROBABILITY, Metric, always_measured, softmax64
from trainables.metrics.evaluate import evaluate_probabilities, reliability_bins

METRICS.discover(__name__)

#: Metrics that every evaluation computes from probabilities and targets.
METRIC_NAMES = always_measured()

#: Binned errors, which are biased at small samples: every evaluation reports their standard errors.
BOOTSTRAPPED = always_measured(lambda metric: metric.binned)

#: Metrics recorded for recalibrated probabilities; they include accuracy, because MetaCal makes the rows that it
#: rejects uniform (selective App. Table 4).
RECALIBRATED = always_measured(lambda metric: metric.recalibrated)

#: Metrics that trial pages and model cards show.
HEADLINES = always_measured(lambda metric: metric.headline)

__all__ = [
    "BOOTSTRAPPED", "HEADLINES", "METRICS", "METRIC_NAMES", "RECALIBRATED", "SMALLEST_PROBABILITY", "Metric",
    "evaluate_probabilities", "reliability_bins", "softmax64",
]  # fmt: skip

"""Evaluation splits beyond a data set's own, by name; `trainables.datasets.splits.base` explains how to add one.

A search space lists them in `evaluation.splits`, each as a mapping from one of these names to its options. Finished
networks are evaluated on them once.
"""

from trainables.datasets.splits.base import EVALUATION_SPLITS, EvaluationSplit, build_split

EVALUATION_SPLITS.discover(__name__)

__all__ = ["EVALUATION_SPLITS", "EvaluationSplit", "build_split"]

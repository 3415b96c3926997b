"""Evaluation splits beyond a data set's own, by name; how one is added is said in `trainables.datasets.splits.base`.

A search space asks for them in `evaluation.splits`, each a mapping of one of these names to its options. Networks are
measured on them once, when they have finished.
"""

from trainables.datasets.splits.base import EVALUATION_SPLITS, EvaluationSplit, build_split

EVALUATION_SPLITS.discover(__name__)

__all__ = ["EVALUATION_SPLITS", "EvaluationSplit", "build_split"]

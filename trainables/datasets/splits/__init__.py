"""Evaluation splits beyond a data set's own, by name; how one is added is said in `trainables.datasets.splits.base`.

A search space asks for them in `evaluation.splits`, each a mapping of one of these names to its options. Networks are
measured on them once, when they have finished.
"""

# Users' data sets of 0.2, of which sweeps keep copies to resume with, import these two from here.
from trainables.datasets.base import hash_of_splits, stratified_split
from trainables.datasets.splits.base import EVALUATION_SPLITS, EvaluationSplit, build_split

EVALUATION_SPLITS.discover(__name__)

__all__ = ["EVALUATION_SPLITS", "EvaluationSplit", "build_split", "hash_of_splits", "stratified_split"]

"""Data sets by name; `trainables.datasets.base` explains how to add one.

Data sets import the registry, torch and numpy; scikit-learn and image readers are imported inside the functions that
need them. They import no losses, networks or training loop.
"""

from trainables.datasets.base import DATASETS, DataSet, Split, hash_of_splits, load_dataset, stratified_split
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.transforms import Transform, Undeclared

DATASETS.discover(__name__)

__all__ = [
    "DataSet", "DataSetUnavailableError", "Split", "Transform", "Undeclared", "hash_of_splits", "load_dataset",
    "stratified_split",
]  # fmt: skip

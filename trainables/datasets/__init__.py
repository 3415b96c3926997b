"""Data sets by name; how one is added is said in `trainables.datasets.base`.

They import the registry, torch and numpy; scikit-learn and readers of images inside the functions that need them.
Neither losses nor networks nor the training loop.
"""

from trainables.datasets.base import DATASETS, DataSet, Split, hash_of_splits, load_dataset, stratified_split
from trainables.datasets.cache import DataSetUnavailableError

DATASETS.discover(__name__)

__all__ = ["DataSet", "DataSetUnavailableError", "Split", "hash_of_splits", "load_dataset", "stratified_split"]

"""Data sets by name. Adding one: write a file with `COMPONENTS` and list it here.

They import the registry, torch and numpy; scikit-learn and readers of images inside the functions that need them.
Neither losses nor networks nor the training loop.
"""

from __future__ import annotations

from typing import Any

from trainables.datasets import (
    arrays,
    cifar,
    digits,
    digits_stand_in,
    fashion_mnist,
    image_folder,
    imagenet,
    newsgroups,
    number_words,
    sentiment,
    streamed_images,
    svhn,
    synthetic,
    tiny_imagenet,
    wmt14,
)
from trainables.datasets.base import DataSet, DataSetUnavailableError, Split, batch_fault, batches, evaluation_batches
from trainables.datasets.own import OWN_DATASETS
from trainables.registry import Registry

__all__ = [
    "DATASETS",
    "DataSet",
    "DataSetUnavailableError",
    "Split",
    "batch_fault",
    "batches",
    "evaluation_batches",
    "load_dataset",
]

DATASETS = Registry("data set", OWN_DATASETS)

for _source in (
    digits,
    digits_stand_in,
    cifar,
    svhn,
    tiny_imagenet,
    fashion_mnist,
    image_folder,
    streamed_images,
    imagenet,
    arrays,
    synthetic,
    newsgroups,
    sentiment,
    wmt14,
    number_words,
):
    for _component in _source.COMPONENTS:
        DATASETS.register(_component)


def load_dataset(name: str, **options: Any) -> DataSet:
    """Load data set `name` with the options its component lists.

    Raises:
        ValueError: unknown name or invalid options.
        DataSetUnavailableError: the files are missing, truncated or corrupted; the message has the path and the remedy.
    """
    dataset: DataSet = DATASETS.build(name, **options)
    return dataset

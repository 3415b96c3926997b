"""Small data sets cut from the digits, so that a whole trial takes a fraction of a second, and files to fetch."""

import hashlib
from dataclasses import replace
from pathlib import Path

import torch

from trainables.datasets import load_dataset
from trainables.datasets.base import DataSet, Split
from trainables.datasets.cache import Source


def small_digits(train: int = 160, held_out: int = 90) -> DataSet:
    """Return the digits with the first `train` training samples and `held_out` of the other splits."""
    digits = load_dataset("digits")
    return replace(
        digits, train=_first(digits.train, train), val=_first(digits.val, held_out), test=_first(digits.test, held_out)
    )


def source_of(path: Path) -> Source:
    """Return a file as one to download, with its own checksum."""
    return Source(path.as_uri(), path.name, "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest())


def poisoned(dataset: DataSet) -> DataSet:
    """Return the data set with one infinite pixel in its training split: the loss stops being a number."""
    inputs = dataset.train.inputs.clone()
    inputs[7].flatten()[3] = torch.inf
    return replace(dataset, train=replace(dataset.train, inputs=inputs))


def _first(split: Split, count: int) -> Split:
    return replace(split, inputs=split.inputs[:count], targets=split.targets[:count])

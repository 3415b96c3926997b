"""The base of evaluation splits beyond a data set's own: additional data on which finished networks are evaluated.

To add one, write a file in this folder with a class that is an `EvaluationSplit`, under the decorator that describes
it. The arguments of its constructor are the options. No other file lists splits. A search space requests it in
`evaluation.splits`, `[val, test, {mirrored: {}}]`.

    @EVALUATION_SPLITS.add("mirrored", "the test images mirrored")
    class Mirrored:
        names, same_classes, detected, samples, logits = ("mirrored",), True, False, None, False

        def fault(self, dataset: DataSet) -> str | None:
            return None if dataset.test.inputs.ndim == 4 else f"{dataset.name} has no images"

        def split(self, dataset: DataSet, name: str) -> Split:
            return beside(dataset, dataset.test.inputs.flip(-1), dataset.test.targets)

A split that comes with a data set needs no file here: it is a `Split` in `DataSet.further`, named in `splits` of the
data set's `Component`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from trainables.datasets.base import DataSet, Split
from trainables.registry import Options, Registry

#: One seed, so that all networks of all sweeps on a data set are evaluated on the same subset.
SUBSET_SEED = 0


class EvaluationSplit(Protocol):
    """An entry of `evaluation.splits` that is not a split of the data set itself.

    An evaluation has a row for each of its `names`.

    Attributes:
        names: names of its splits in the tables; they consist of lower-case letters, digits and _.
        same_classes: whether its targets are classes of the data set; if not, only its distribution is compared.
        detected: whether it is compared with the test split as another distribution (columns `ood_…`).
        samples: maximum number of samples to evaluate; `None` for all.
        logits: whether logits are kept in `predictions`.
    """

    names: tuple[str, ...]
    same_classes: bool
    detected: bool
    samples: int | None
    logits: bool

    def fault(self, dataset: DataSet) -> str | None:
        """Return the reason why it cannot be used with `dataset`, or `None`; called before training."""

    def split(self, dataset: DataSet, name: str) -> Split:
        """Return the split `name`, with inputs on the CPU and targets on the device of the data set's targets.

        Raises:
            DataSetUnavailableError: files are missing or broken.
        """


EVALUATION_SPLITS = Registry("evaluation split")


def build_split(entry: Options) -> EvaluationSplit:
    """Return the split named in a resolved entry of `evaluation.splits`, without loading anything.

    Raises:
        ValueError: unknown name or invalid options.

    Example:
        >>> from trainables.datasets.splits import build_split
        >>> build_split({"name": "corrupted", "kinds": ["fog"], "severities": [1, 3]}).names
        ('corrupted_fog_1', 'corrupted_fog_3')
    """
    # Built without `Registry.build`, which knows no option that names another component.
    component = EVALUATION_SPLITS[entry["name"]]
    split: EvaluationSplit = component.build(**{key: value for key, value in entry.items() if key != "name"})
    return split


def subset(count: int, samples: int | None) -> Tensor:
    """Return the sorted indices of the samples to evaluate, int64: a random `samples` of `count`, or all."""
    # a generator of its own: the subset depends on neither the sweep's seeds nor the order of evaluations
    if samples is None or samples >= count:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(SUBSET_SEED)
    return torch.randperm(count, generator=generator)[:samples].sort().values


def beside(dataset: DataSet, inputs: np.ndarray | Tensor, targets: np.ndarray | Tensor) -> Split:
    """Return stored inputs and targets as a streamed split with the preprocessing and device of the test split."""
    test = dataset.test
    stored, classes = torch.as_tensor(inputs), torch.as_tensor(targets)
    return Split(stored, classes, test.preprocessing).to(test.targets.device, streamed=True)

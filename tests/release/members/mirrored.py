"""The test images mirrored."""

from __future__ import annotations

from dataclasses import dataclass

from trainables.datasets.base import DataSet, Split
from trainables.datasets.splits.base import beside
from trainables.registry import Component


@dataclass(frozen=True)
class Mirrored:
    """See `EvaluationSplit`."""

    names: tuple[str, ...] = ("mirrored",)
    same_classes: bool = True
    detected: bool = True
    samples: int | None = None
    logits: bool = False

    def fault(self, dataset: DataSet) -> str | None:
        """Return why there is nothing to mirror."""
        return None if dataset.test.inputs.ndim == 4 else f"{dataset.name} has no images"

    def split(self, dataset: DataSet, name: str) -> Split:
        """Return the images mirrored."""
        return beside(dataset, dataset.test.inputs.flip(-1), dataset.test.targets)


COMPONENTS = (Component("mirrored", Mirrored, summary="the test images mirrored"),)

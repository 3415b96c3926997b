"""The test images mirrored."""

from __future__ import annotations

from trainables.datasets.base import DataSet, Split
from trainables.datasets.splits.base import EVALUATION_SPLITS, beside


@EVALUATION_SPLITS.add("mirrored", "the test images mirrored")
class Mirrored:
    """See `EvaluationSplit`."""

    names = ("mirrored",)
    same_classes = True
    detected = True
    samples = None
    logits = False

    def fault(self, dataset: DataSet) -> str | None:
        """Return why there is nothing to mirror."""
        return None if dataset.test.inputs.ndim == 4 else f"{dataset.name} has no images"

    def split(self, dataset: DataSet, name: str) -> Split:
        """Return the images mirrored."""
        return beside(dataset, dataset.test.inputs.flip(-1), dataset.test.targets)

"""Predictions that were made elsewhere, and the search space that describes their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweeper.execution.prediction_runs import Place, Rows, Values
from trainables.datasets.base import hash_of_splits
from trainables.registry import IMPORTED, OWN, SPLITS
from trainables.training.own_loop import PARTS

#: Post-hoc methods that are compared, of many classes and of two. If there are many runs, only the first, since the
#: others take seconds each.
METHODS, OF_TWO_CLASSES = ["temperature", "vector", "isotonic"], ["temperature", "beta", "isotonic"]

#: Further metrics for data with two classes: those of the probability of class 1.
BINARY = ["ece_positive", "calibration_slope", "calibration_intercept"]


@dataclass(frozen=True)
class Predictions:
    """The contents of a file of predictions.

    Attributes:
        configurations: values of the configurations, nested as in a search space.
        seeds, epochs, splits: those in the file, in order; `val` is the first split.
        logits: logits of all samples, float32 [N, K].
        targets: class indices of all samples, int64 [N].
        rows: configuration, seed and epoch → split → its rows.
        weights: weights of all samples, float32 [N]; `None` for equal weights.
        notes: assumptions about something that the file does not say, and what was not used, one sentence each.
    """

    configurations: Sequence[Values]
    seeds: Sequence[int]
    epochs: Sequence[int]
    splits: Sequence[str]
    logits: NDArray[np.float32]
    targets: NDArray[np.int64]
    rows: Mapping[Place, Mapping[str, Rows]]
    weights: NDArray[np.float32] | None = None
    notes: Sequence[str] = ()

    def space(self) -> Values:
        """Return a search space that contains the configurations."""
        parts = {part: own for part in PARTS if (own := [c[part] for c in self.configurations])[0] != {"name": OWN}}
        rest = [{key: value for key, value in c.items() if key not in PARTS} for c in self.configurations]
        named = {}
        for part, values in parts.items():
            names = dict.fromkeys(value["name"] for value in values)
            options = [_choices([value for value in values if value["name"] == name]) for name in names]
            named[part] = {"one_of": options} if len(options) > 1 else options[0]
        binary = self.logits.shape[1] == 2
        return {
            "loop": IMPORTED,
            "scheduler": {"name": "none", "max_epochs": self.epochs[-1], "order": "arrival"},  # the file's
            "samples": len(self.configurations),
            "replicates": {"count": len(self.seeds), "seeds": [*self.seeds]},
            "evaluation": {
                "curvature": False,
                "splits": [*self.splits],
                "posthoc": (OF_TWO_CLASSES if binary else METHODS)[: None if len(self.rows) == 1 else 1],
                "metrics": BINARY if binary else [],
            },
            "space": {**named, **_choices(rest)},
        }

    def facts(self) -> Values:
        """Return the manifest's facts about the data: samples per split, classes, and the hash of the splits."""
        first = next(iter(self.rows.values()))
        sizes = dict.fromkeys(SPLITS, 0) | {name: len(own) for name, own in first.items()}
        digest = hash_of_splits(*(self.targets[first.get(name, ())] for name in SPLITS))
        return {"samples": sizes, "classes": self.logits.shape[1], "split_hash": digest}


def _choices(rows: Sequence[Values]) -> Values:
    """Return each key's value if all rows share it, else a choice of its values."""
    keys = dict.fromkeys(key for row in rows for key in row)
    seen: dict[str, list[Any]] = {key: [*dict.fromkeys(row[key] for row in rows if key in row)] for key in keys}
    return {
        key: values[0] if len(values) == 1 and all(key in row for row in rows) else {"choice": values}
        for key, values in seen.items()
    }

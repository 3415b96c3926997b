"""What a network says of whole splits: the data set's own, and those that finished networks are measured on besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainables.datasets.base import DataSet, Split, evaluation_batches
from trainables.datasets.shifts import build_shift


@dataclass(frozen=True)
class ShiftedData:
    """What a network says of one split beyond the data set's own.

    Attributes:
        logits: float32 `[N, K]`.
        targets: classes, int64 `[N]`.
        same_classes: whether the targets are the network's classes.
        detected: whether it is told from the test split.
        kept: whether logits go into the tables.
    """

    logits: np.ndarray
    targets: np.ndarray
    same_classes: bool
    detected: bool
    kept: bool


def shifted_data(model: nn.Module, dataset: DataSet, shifts: Iterable[Mapping[str, Any]]) -> dict[str, ShiftedData]:
    """Return split → what a network says of it, for every split of the requested shifts."""
    found = {}
    for shift in map(build_shift, shifts):
        for name in shift.names:
            split = shift.split(dataset, name)
            values = predict(model, split).float().cpu().numpy()
            told = (shift.same_classes, shift.detected, shift.logits)
            found[name] = ShiftedData(values, split.targets.cpu().numpy(), *told)
    return found


@torch.no_grad()
def predict(model: nn.Module, split: Split, batch_size: int = 1024) -> Tensor:
    """Return the logits `[N, K]` of a whole split, in evaluation mode, on the model's device."""
    model.eval()
    return torch.cat([model(inputs) for inputs, _ in evaluation_batches(split, batch_size)])

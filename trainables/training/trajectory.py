"""What happens while a network trains: losses, entropies and norms after each epoch, on training and test data.

An evaluation is made at rungs; this is the small part of it that curves against the epoch are drawn from (mukhoti
Figs. 2, 3 and 10, for a linear model Fig. 7), and histograms of gradient norms at chosen epochs (Fig. 4b to d). Its
values are columns of the `epochs` table, `<split>_<metric>`; a sweep that does not ask for them has no such columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trainables.datasets.base import DataSet, Split
from trainables.losses import Loss
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.training.prediction import (
    features_and_logits,
    gradient_norm_counts,
    last_layer_gradient_norms,
    last_linear,
    on_host,
)

TRAJECTORY_METRICS = (
    "nll",
    "nll_correct",
    "nll_wrong",
    "entropy_correct",
    "entropy_wrong",
    "accuracy",
    "ece",
    "confidence_wrong",
)
"""The metrics of each split; `val_nll`, `val_accuracy` and `val_ece` are in every epoch row anyway."""

TRAJECTORY_NORMS = ("logit_norm", "feature_norm")
"""Means over a split of the norm of a sample's logits and of its features before the last linear layer."""

WEIGHT_NORM = "last_layer_weight_norm"
GRADIENT_MEAN, GRADIENT_COUNTS = "gradient_norm_mean", "gradient_norm_counts"
"""Of the training split, at the requested epochs; the counts are of the bins of `GRADIENT_NORM_EDGES`."""


@dataclass(frozen=True)
class TrajectorySettings:
    """What is measured after which epochs.

    Attributes:
        splits: names of the data set's splits.
        every: epochs from one measurement to the next.
        gradient_norms: epochs after which the training samples' gradient norms are counted.
        bins: of the calibration error.
    """

    splits: tuple[str, ...] = ("train", "test")
    every: int = 1
    gradient_norms: tuple[int, ...] = ()
    bins: int = 15

    @staticmethod
    def from_mapping(values: Mapping[str, Any], bins: int = 15) -> TrajectorySettings:
        """Read the settings of a checked search space."""
        splits, epochs = values.get("splits", ("train", "test")), values.get("gradient_norms", ())
        return TrajectorySettings(tuple(splits), values.get("every", 1), tuple(epochs), bins)


def trajectory_columns(values: Mapping[str, Any]) -> dict[str, type]:
    """Return the columns that the settings `values` add to the `epochs` table, with the type of their values."""
    settings = TrajectorySettings.from_mapping(values)
    measured = {f"{s}_{m}": float for s in settings.splits for m in (*TRAJECTORY_METRICS, *TRAJECTORY_NORMS)}
    columns: dict[str, type] = {**measured, WEIGHT_NORM: float}
    for known in ("val_nll", "val_accuracy", "val_ece"):
        columns.pop(known, None)
    return {**columns, GRADIENT_MEAN: float, GRADIENT_COUNTS: list} if settings.gradient_norms else columns


def trajectory_row(
    model: nn.Module, loss: Loss, dataset: DataSet, settings: TrajectorySettings, epoch: int
) -> dict[str, Any]:
    """Return what the settings ask for after `epoch` completed epochs; `{}` where it is not their turn.

    The network's parameters, buffers and mode are left as they were found. A split on which the network's outputs
    are not finite gives no values, a network without a linear layer no norms of features, weights and gradients.
    """
    gradients = epoch in settings.gradient_norms
    if epoch % settings.every and not gradients:
        return {}
    was_training, layer = model.training, last_linear(model)
    row: dict[str, Any] = {}
    for name in settings.splits if epoch % settings.every == 0 else ():
        found = _measured(model, layer, dataset.splits[name], settings.bins)
        row |= {f"{name}_{key}": value for key, value in found.items()}
    if row and layer is not None:
        row[WEIGHT_NORM] = float(layer.weight.detach().norm())
    if gradients and layer is not None:
        row |= _gradient_columns(model, layer, loss, dataset.train)
    model.train(was_training)
    return {key: value for key, value in row.items() if key not in ("val_nll", "val_accuracy", "val_ece")}


def _measured(model: nn.Module, layer: nn.Linear | None, split: Split, bins: int) -> dict[str, float]:
    logits, norms = [], []
    for features, own, _ in features_and_logits(model, layer, split):
        logits.append(own.float())
        norms += [features.norm(dim=1)] if features is not None else []
    outputs, classes, *feature_norms = on_host(torch.cat(logits), split.targets, *([torch.cat(norms)] if norms else []))
    targets = classes.numpy()
    if not torch.isfinite(outputs).all():
        return {}
    found = evaluate_probabilities(softmax64(outputs.numpy()), targets, min(bins, len(targets)))
    row = {name: found[name] for name in TRAJECTORY_METRICS}
    row["logit_norm"] = float(outputs.norm(dim=1).mean())
    return {**row, "feature_norm": float(feature_norms[0].mean())} if feature_norms else row


def _gradient_columns(model: nn.Module, layer: nn.Linear, loss: Loss, split: Split) -> dict[str, Any]:
    norms = np.concatenate(
        [
            last_layer_gradient_norms(features, logits.float(), targets, loss).cpu().numpy()
            for features, logits, targets in features_and_logits(model, layer, split)
            if features is not None
        ]
    )
    return {GRADIENT_MEAN: float(norms.mean()), GRADIENT_COUNTS: gradient_norm_counts(norms)}

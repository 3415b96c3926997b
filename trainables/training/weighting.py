"""Weights of classes and samples in the training loss, and balanced sampling.

With weights w, a batch's loss is Σ_i w_i v_i / Σ_i w_i over the samples' values v, as torch's `cross_entropy` computes
it for class weights. A sample's weight is the product of its own weight, such as a column of a table, and its class's
weight. The Hessian of the training loss has the same weights, normalised over all measured samples. Class weights and
the sampler change the training loss alone; metrics show the calibration on the data as they are.

Losses that are functions of a whole batch have no values per sample to weight, and are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from trainables.datasets.base import DataSet
from trainables.losses import LOSSES, build_loss
from trainables.losses.base import unweighted
from trainables.models import ARCHITECTURES
from trainables.registry import Configuration
from trainables.registry.names import did_you_mean
from trainables.training.acceleration import BALANCED, TrainingSettings
from trainables.training.fine_tuning import mixes


def weighted(dataset: DataSet, training: TrainingSettings) -> DataSet:
    """Return the data set with the class weights and the sampler that `training` requests.

    Raises:
        ValueError: a class weight names no class of the data set.
    """
    if training.class_weights is not None:
        weights = class_weights(dataset, training.class_weights)
        dataset = dataset.with_splits(lambda split: replace(split, class_weights=weights))
    if training.sampler == BALANCED:
        dataset = replace(dataset, train=replace(dataset.train, balanced=True))
    return dataset


def class_weights(dataset: DataSet, given: str | Mapping[str, float]) -> Tensor:
    """Return the weight of each class, float32 [K] on the device of the targets.

    Args:
        dataset: data set with K classes.
        given: `balanced` for n/(K·n_k) with n_k of n training samples in class k, as scikit-learn's `class_weight`
            (King & Zeng 2001); or class → weight, with 1 for classes that are left out. Classes have their names, or
            numbers from 0 if the data set has no names.

    Raises:
        ValueError: a name is none of the classes.

    Example:
        >>> from trainables.datasets import load_dataset
        >>> class_weights(load_dataset("digits"), {"0": 2.0})[:2]
        tensor([2., 1.])
    """
    if given == BALANCED:
        counts = torch.bincount(dataset.train.targets.cpu(), minlength=dataset.classes)
        present = int((counts > 0).sum())
        # a class without training samples has no weight to compute, and counts as one sample
        weights = counts.sum() / (present * counts.clamp(min=1))
    else:
        assert isinstance(given, Mapping)
        names = dataset.class_names or tuple(map(str, range(dataset.classes)))
        if unknown := [name for name in given if name not in names]:
            shown = ", ".join(names[:10]) + ", …" * (len(names) > 10)
            rule = f"class_weights names {unknown[0]!r}, but the classes of {dataset.name} are {shown}"
            raise ValueError(f"{rule}{did_you_mean(unknown[0], names)}")
        weights = torch.tensor([given.get(name, 1.0) for name in names])
    return weights.float().to(dataset.train.targets.device)


def weighting_fault(configuration: Configuration, dataset: DataSet) -> str | None:
    """Return why a configuration cannot be trained on a data set with weights, or `None`; called before a run."""
    if dataset.train.loss_weights is None:
        return None
    loss, network = build_loss(**configuration["loss"]), configuration["architecture"]["name"]
    if loss.batch_coupled:
        return f"{unweighted(loss.name)}, or leave out class_weights and the column of weights"
    if loss.needs_model and LOSSES.is_own(loss.name):
        return f"{loss.name} takes the network itself and no weights; choose another loss, or leave out the weights"
    if (name := mixes(configuration["optimizer"])) is not None:
        return f"{name} mixes samples, whose weights would differ; choose {name}: 0, or leave out the weights"
    if ARCHITECTURES.has_tag(network, "follows_data"):
        return f"{network} trains on the nodes of trees, which have no weights; choose another network"
    return None

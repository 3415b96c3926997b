"""Which configurations can be lanes, alone with their replicates or among others, and a trial of those that only it can
tell of.

For the project's own networks and losses tests show it. A user's own are tried where they train: a loss that looks at
its values in Python cannot be mapped, one that keeps its state elsewhere than in `state_dict` would be mapped wrongly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from trainables.datasets.base import DataSet
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES
from trainables.training.acceleration import CHANNELS_LAST, PLAIN, TrainingSettings
from trainables.training.lanes.cohort import Lanes
from trainables.training.lanes.rules import rule_of
from trainables.training.loop import Replicate
from trainables.training.recipe import alone_fault

STEPS = 3
"""Steps an epoch of a trial; with two epochs a wrong gradient or a lost state shows in the second one's losses."""

EPOCHS = 2

TOLERANCE = 0.01
"""Of losses and states after six steps. Lanes round otherwise, by some 1e-6 a step; a wrong gradient, or a state that
is not each lane's own, shows in the first digits."""


def unmappable(configuration: Mapping[str, Any], training: TrainingSettings = PLAIN) -> tuple[str, str] | None:
    """Return what of a configuration cannot be a lane at all, network, loss or recipe, and why; or `None`."""
    network, loss = configuration["architecture"]["name"], configuration["loss"]["name"]
    if training.memory_format == CHANNELS_LAST:
        return network, "lanes are channels of one network, whose layout cannot be channels_last"
    if (alone := alone_fault(configuration.get("optimizer", {}))) is not None:
        return "a recipe", alone
    if training.graphs:
        return network, "lanes take plain steps, not recorded ones (training.graphs)"
    for registry, name in ((ARCHITECTURES, network), (LOSSES, loss)):
        if not registry.is_own(name) and registry[name].lanes:
            return name, registry[name].lanes
    return None


def is_own(configuration: Mapping[str, Any]) -> bool:
    """Return whether the network or the loss of a configuration is the user's own."""
    return ARCHITECTURES.is_own(configuration["architecture"]["name"]) or LOSSES.is_own(configuration["loss"]["name"])


def cohort_fault(configuration: Mapping[str, Any], training: TrainingSettings = PLAIN) -> str | None:
    """Return why a configuration cannot be a lane beside other configurations, or `None`."""
    if (found := unmappable(configuration, training)) is not None:
        return found[1]
    if training.compile:
        return "a cohort is not compiled"
    if training.precision != PLAIN.precision:
        return f"a cohort computes in float32, not in {training.precision}"
    for registry, part in ((ARCHITECTURES, "architecture"), (LOSSES, "loss")):
        if registry.is_own(name := configuration[part]["name"]):
            return f"{name} is your own {registry.kind}: its lanes would have to be tried first (packing: fused does)"
    return None


def cohort_key(configuration: Mapping[str, Any], training: TrainingSettings = PLAIN) -> str | None:
    """Return what the lanes of one cohort have in common, as text; `None` where a configuration cannot be a lane.

    It is the data set, the network with all its hyperparameters, the batch size and the kind of optimiser: what decides
    the shapes. A loss that differentiates three times shares a cohort with its like alone.
    """
    if cohort_fault(configuration, training) is not None:
        return None
    recipe, loss = configuration["optimizer"], configuration["loss"]
    third_order = LOSSES.has_tag(loss["name"], "third_order")
    regularised = [loss["name"], loss.get("probes"), loss.get("weight") == 0] if third_order else None
    batch_size = recipe.get("batch_size", 128)
    parts = [configuration.get("dataset"), configuration["architecture"], batch_size, rule_of(recipe), regularised]
    return json.dumps(parts, sort_keys=True, default=str)


def few_batches(dataset: DataSet, batch_size: int, steps: int = STEPS) -> DataSet:
    """Return the data set cut to a few batches for training, and one for validation."""
    return replace(dataset, train=dataset.train.first(steps * batch_size), val=dataset.val.first(batch_size))


def lane_fault(
    build: Callable[[int, DataSet], Replicate], seeds: Sequence[int], dataset: DataSet, batch_size: int
) -> str | None:
    """Return why replicates do not train as lanes what they train alone, or `None` when they do.

    Args:
        build: makes a replicate from a seed, to train on the data set given.
        seeds: of two replicates or more; two are tried.
        dataset: on the device.
        batch_size: of the recipe.
    """
    few = few_batches(dataset, batch_size)
    alone, together = ([build(seed, few) for seed in seeds[:2]] for _ in range(2))
    expected = [[each.train_epoch() for each in alone] for _ in range(EPOCHS)]
    try:
        lanes = Lanes(together)
        found = [lanes.train_epoch() for _ in range(EPOCHS)]
        lanes.settle()
    except Exception as error:
        # torch.func names what it cannot map over lanes in many ways, and a user's code may fail in others.
        words = " ".join(str(error).split())
        return f"it cannot be mapped over lanes ({type(error).__name__}: {words[:200]})"
    for mine, theirs in zip(expected, found, strict=True):
        for lane, (left, right) in enumerate(zip(mine, theirs, strict=True)):
            for column in ("train_loss", "val_nll"):
                if not _close(left[column], right[column]):
                    return (
                        f"as lane {lane} its {column} is {right[column]:.6g}, alone {left[column]:.6g}, in epoch "
                        f"{left['epoch']}"
                    )
    return _state_fault([each.loss.state_dict() for each in alone], [each.loss.state_dict() for each in together])


def _state_fault(alone: Sequence[Mapping[str, Any]], together: Sequence[Mapping[str, Any]]) -> str | None:
    for left, right in zip(alone, together, strict=True):
        for key, value in left.items():
            mine, theirs = torch.as_tensor(value).double(), torch.as_tensor(right[key]).double()
            if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=TOLERANCE, atol=1e-6):
                return f"the loss's state {key!r} is not the same after training in lanes"
    return None


def _close(left: float, right: float) -> bool:
    same = math.isnan(left) and math.isnan(right)
    return same or math.isclose(left, right, rel_tol=TOLERANCE, abs_tol=1e-6)

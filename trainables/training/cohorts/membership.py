"""Which configurations may be lanes of one cohort."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES
from trainables.training.acceleration import CHANNELS_LAST, PLAIN, TrainingSettings
from trainables.training.cohorts.rules import RULES, rule_of
from trainables.training.recipe import alone_fault


def cohort_fault(configuration: Mapping[str, Any], training: TrainingSettings = PLAIN) -> str | None:
    """Return why a configuration cannot be a lane of a cohort, or `None`."""
    network, loss = configuration["architecture"]["name"], configuration["loss"]["name"]
    if training.memory_format == CHANNELS_LAST:
        return "lanes are channels of one network, whose layout cannot be channels_last"
    if training.compile:
        return "a cohort is not compiled"
    if training.graphs:
        return "lanes take plain steps, not recorded ones (training.graphs)"
    if (alone := alone_fault(configuration["optimizer"])) is not None:
        return alone
    if training.precision != PLAIN.precision:
        return f"a cohort computes in float32, not in {training.precision}"
    for registry, name in ((ARCHITECTURES, network), (LOSSES, loss)):
        if registry.is_own(name):
            return f"{name} is your own {registry.kind}: its lanes would have to be tried first (packing: fused does)"
        if registry[name].lanes:
            return registry[name].lanes
    if rule_of(configuration["optimizer"]) not in RULES:
        return f"{configuration['optimizer']['name']} has no rule for lanes"
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

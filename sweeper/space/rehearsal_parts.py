"""The data set and network that replace others in a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainables.datasets import DATASETS, digits_stand_in
from trainables.datasets.images import LIKE_CIFAR
from trainables.models import ARCHITECTURES
from trainables.registry import Registry

SHARED = ("dropout", "shortcut", "output_gate", "train_embedding")
"""Hyperparameters that a stand-in inherits if it has them."""


def rehearsed_dataset(dataset: Mapping[str, Any], said: list[str]) -> dict[str, Any]:
    """Return the data set of a rehearsal; what was replaced is added to `said`."""
    name = dataset["name"]
    found = None if DATASETS.is_own(name) else DATASETS[name].stand_in
    options = dict(found(dataset)) if callable(found) else dict(LIKE_CIFAR if found is None else found)
    if not options:
        return dict(dataset)
    if "name" in options:
        said.append(f"{name} → {options['name']}")
        return options
    if "augment" in dataset:
        options["augment"] = dataset["augment"]
    shown = {**_defaults(DATASETS, digits_stand_in.NAME), **options}
    shape = (
        f"{shown['channels']}×{shown['size']}×{shown['size']} images of {shown['classes']} classes"
        if shown["form"] == "images"
        else f"{shown['form']} of {shown['classes']} classes"
    )
    said.append(f"{name} → handwritten digits as {shape}")
    return {"name": digits_stand_in.NAME, **options}


def known_splits(dataset: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the splits that a rehearsal's data set has; a file's own `rehearsal` may name another one's later."""
    return DATASETS[dataset["name"]].splits


def options_of(name: str) -> tuple[str, ...]:
    """Return the names of the options that a data set takes."""
    return tuple(hyperparameter.name for hyperparameter in DATASETS[name].hyperparameters)


def rehearsed_architecture(
    architecture: Mapping[str, Any], dataset: Mapping[str, Any], said: list[str]
) -> dict[str, Any]:
    """Return a rehearsal's network for its `dataset`; replacements are added to `said`."""
    name = architecture["name"]
    kept = dataset["name"] != digits_stand_in.NAME and name in ("mlp", "resnet8")
    found = None if kept or ARCHITECTURES.is_own(name) else ARCHITECTURES[name].stand_in
    small = dict(found(architecture)) if callable(found) else dict(found or {})
    if not small:
        return dict(architecture)
    if ARCHITECTURES.has_tag(small["name"], "text"):
        small = {"name": small["name"], "vocabulary": digits_stand_in.VOCABULARY, **small}
    defaults = _defaults(ARCHITECTURES, small["name"])
    small |= {key: architecture[key] for key in SHARED if key in defaults and _differs(architecture, key, defaults)}
    options = ", ".join(f"{key} {value}" for key, value in small.items() if key not in ("name", *SHARED))
    said.append(f"{name} → {small['name']} ({options})")
    return small


def _differs(architecture: Mapping[str, Any], key: str, defaults: Mapping[str, Any]) -> bool:
    """Return whether a hyperparameter is given and not the stand-in's default: two names of one network are one."""
    return key in architecture and architecture[key] != defaults[key]


def _defaults(registry: Registry, name: str) -> dict[str, Any]:
    return {hyperparameter.name: hyperparameter.default for hyperparameter in registry[name].hyperparameters}

"""Telling whether a configuration, a data set or a post-hoc method is the one of a published number.

Values are compared in one way of writing, whatever a table's column type has made of them (`3`, `3.0`, `"3"`), and a
hyperparameter at its default counts as not given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from search_spaces.published_numbers import PublishedNumber
from sweeper.text.cells import Row
from trainables.datasets import DATASETS
from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES
from trainables.posthoc import POSTHOC
from trainables.registry import FITTED_ON, LABEL, Component
from trainables.training.recipe import OPTIMIZERS

REGISTRIES = {"loss": LOSSES, "architecture": ARCHITECTURES, "optimizer": OPTIMIZERS}
"""The parts of a configuration."""

PLACES = ("folder", "download")
"""Options of a data set that say where its files are and nothing of what is in them."""

SHARE = "class_fraction"
"""The option of a data set that a number without it takes for its default: all of the data."""

OF_FIGURES = ("epoch", "after_epoch")
"""Options of a figure's number that no component takes: the epoch that it is read at, or after which it holds."""

Settings = frozenset[tuple[str, str]]
"""A component's name and options that are not at their defaults, as text."""

OF_OBJECTIVES = {"nll": (), "ece": ("grid", "bins", "scheme"), "focal": ("gamma", "apply_focal_map")}
"""The options that each objective of temperature scaling reads; the others say nothing."""


def written(value: object) -> str:
    """Return a value in the one way that values are compared in."""
    if isinstance(value, (list, tuple)):
        return json.dumps([float(each) if isinstance(each, int) else each for each in value])
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value).strip()
    if text.startswith("["):
        return written(json.loads(text))
    try:
        return f"{float(text):.10g}"
    except ValueError:
        return text.lower() if text in ("True", "False") else text


def settings_of(component: Component | None, given: Mapping[str, object], leave_out: Iterable[str] = ()) -> Settings:
    """Return a component's settings that are not at their defaults; those of an unknown one as they are given."""
    defaults = {h.name: h.default for h in component.hyperparameters} if component is not None else {}
    kept = {key: value for key, value in given.items() if value is not None and key not in leave_out}
    return frozenset(
        (key, written(value))
        for key, value in kept.items()
        if defaults.get(key) is None or written(value) != written(defaults[key])
    )


def configuration_settings(row: Row) -> Settings:
    """Return what the `config_…` columns of a row say of loss, architecture and optimiser."""
    found: set[tuple[str, str]] = set()
    for part, registry in REGISTRIES.items():
        prefix = f"config_{part}_"
        given = {key.removeprefix(prefix): value for key, value in row.items() if key.startswith(prefix)}
        name = str(given.get("name"))
        component = None if registry.is_own(name) else registry[name]
        found |= {(f"{part}.{key}", value) for key, value in settings_of(component, given)}
    return frozenset(found)


def dataset_settings(dataset: Mapping[str, object]) -> Settings:
    """Return what a search space says of its data set, but for where it lies; of word vectors the file's name."""
    given = dict(dataset)
    if given.get("word_vectors"):
        given["word_vectors"] = Path(str(given["word_vectors"])).name
    name = str(given.get("name"))
    return settings_of(None if DATASETS.is_own(name) else DATASETS[name], given, PLACES)


def method_settings(method: str, options: Mapping[str, object]) -> Settings:
    """Return what is said of a post-hoc method, but for its label and the options that its objective never reads."""
    given = {"name": method, FITTED_ON: "val", **options}
    unread: tuple[str, ...] = (LABEL,)
    if method == "temperature":
        read = OF_OBJECTIVES[str(given.get("objective", "nll"))]
        unread += tuple(key for every in OF_OBJECTIVES.values() for key in every if key not in read)
    return settings_of(None if POSTHOC.is_own(method) else POSTHOC[method], given, unread)


def trains(row: Row, number: PublishedNumber) -> bool:
    """Return whether a configuration has the loss, the network and every option of them that a number names."""
    named = (("loss", number.loss), ("architecture", number.architecture))
    if any(row.get(f"config_{part}_name") != name for part, name in named):
        return False
    for part, name in named:
        wanted = options_of(number, part)
        given = {option: value for option in wanted if (value := row.get(f"config_{part}_{option}")) is not None}
        if not _has(REGISTRIES[part][name], given, wanted):
            return False
    return True


def of_network(row: Row, number: PublishedNumber) -> bool:
    """Return whether a configuration has the network that a number names, whatever its loss."""
    return trains({**row, "config_loss_name": number.loss}, replace(number, options=_of_network(number)))


def _of_network(number: PublishedNumber) -> dict[str, str]:
    return {key: value for key, value in number.options.items() if key.startswith("architecture.")}


def on_dataset(dataset: Mapping[str, object], number: PublishedNumber) -> bool:
    """Return whether a data set has a number's name and options, and is whole where the number names no share."""
    if dataset.get("name") != number.dataset:
        return False
    component = DATASETS[number.dataset]
    share = component.hyperparameter(SHARE)
    whole = {SHARE: written(share.default)} if share is not None else {}
    return _has(component, dataset, {**whole, **options_of(number, "dataset")})


def is_method_of(number: PublishedNumber, method: str, options: Mapping[str, object]) -> bool:
    """Return whether a post-hoc method with options is the one that a number names."""
    return method == number.posthoc and _has(POSTHOC[method], options, options_of(number, "posthoc"))


def options_of(number: PublishedNumber, part: str) -> dict[str, str]:
    """Return a number's options of one part of an experiment; an option that names no part is the loss's."""
    split = [(*key.rpartition(".")[::2], value) for key, value in number.options.items() if key not in OF_FIGURES]
    return {option: value for of, option, value in split if (of or "loss") == part}


def _has(component: Component, given: Mapping[str, object], wanted: Mapping[str, str]) -> bool:
    defaults = {h.name: h.default for h in component.hyperparameters}
    return all(written(given.get(option, defaults.get(option))) == written(value) for option, value in wanted.items())

"""The recipe of a published number: the shipped search space that names its table and trains its configuration.

A sweep's numbers fill the paper's cells only if the sweep followed that recipe: the same data, split and share of it,
epochs, bins, precision, objective and measurements (`fixed_by`), at least as many seeds, and the same network, loss and
optimiser to every hyperparameter (`configuration_settings`). Values are compared as normalised text, because column
types change them (`3`, `3.0`, `"3"`). A hyperparameter at its default counts as not given.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from search_spaces import packaged_files
from search_spaces.papers.published_numbers import PublishedNumber
from sweeper.core.cells import Row
from sweeper.core.labels import REHEARSAL_SUFFIX
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.space.spec import SweepSpec
from trainables.curvature.statistics.base import MEASUREMENTS
from trainables.datasets.base import DATASETS
from trainables.losses import LOSSES
from trainables.metrics.base import METRICS
from trainables.models import ARCHITECTURES
from trainables.posthoc import POSTHOC
from trainables.registry import FITTED_ON, LABEL, Component, column_label
from trainables.training.recipe import OPTIMIZERS

#: The parts of a configuration.
REGISTRIES = {"loss": LOSSES, "architecture": ARCHITECTURES, "optimizer": OPTIMIZERS}

#: Prefixes of a configuration's columns, and of its network's.
CONFIGURATION = "config_"
NETWORK = "config_architecture_"

#: Options of a data set that locate its files and do not change their content.
PLACES = ("folder", "download")

#: The data set's option for a share of the data; a number without it means all of the data.
SHARE = "class_fraction"

#: Options of a figure's number that belong to no component: the epoch at which the figure is read, or after which its
#: statement holds.
OF_FIGURES = ("epoch", "after_epoch")

#: A component's name and options that are not at their defaults, as text.
Settings = frozenset[tuple[str, str]]

#: Curvature settings that do not change the columns that papers print.
HOW_CURVATURE_IS_COMPUTED = ("spectrum", "spectrum_steps")

#: The options that each objective of temperature scaling reads; others are ignored when methods are compared.
OF_OBJECTIVES = {
    "nll": (),
    "nll_on_grid": ("grid",),
    "ece": ("grid", "bins", "scheme"),
    "focal": ("gamma", "apply_focal_map"),
}


def written(value: object) -> str:
    """Return a value as the normalised text in which values are compared.

    >>> written("3.0"), written(3), written(True), written([1, 2.5])
    ('3', '3', 'true', '[1.0, 2.5]')
    """
    if isinstance(value, (list, tuple)):
        return json.dumps([float(member) if isinstance(member, int) else member for member in value])
    if isinstance(value, bool):  # before float(): True would become 1
        return str(value).lower()
    text = str(value).strip()
    if text.startswith("["):
        return written(json.loads(text))
    try:
        return f"{float(text):.10g}"  # not every digit: a value may have passed through another text
    except ValueError:
        return text.lower() if text in ("True", "False") else text


def settings_of(component: Component | None, given: Mapping[str, object], leave_out: Iterable[str] = ()) -> Settings:
    """Return a component's settings that are not at their defaults; for an unknown component, all that are given."""
    defaults = {h.name: h.default for h in component.hyperparameters} if component is not None else {}
    kept = {key: value for key, value in given.items() if value is not None and key not in leave_out}
    return frozenset(
        (key, written(value))
        for key, value in kept.items()
        if defaults.get(key) is None or written(value) != written(defaults[key])
    )


def configuration_settings(row: Row) -> Settings:
    """Return the settings in a row's `config_…` columns: loss, architecture, optimiser, and a loop's own."""
    settings: set[tuple[str, str]] = set()
    for part, registry in REGISTRIES.items():
        prefix = f"config_{part}_"
        given = {key.removeprefix(prefix): value for key, value in row.items() if key.startswith(prefix)}
        name = str(given.get("name"))
        component = None if registry.is_own(name) else registry[name]
        settings |= {(f"{part}.{key}", value) for key, value in settings_of(component, given)}
    others = ("config_hash", *(f"{CONFIGURATION}{part}_" for part in (*REGISTRIES, "dataset")))
    of_loop = {k: value for k, value in row.items() if k.startswith(CONFIGURATION) and not k.startswith(others)}
    settings |= {(k.removeprefix(CONFIGURATION), written(value)) for k, value in of_loop.items() if value is not None}
    return frozenset(settings)


def dataset_settings(dataset: Mapping[str, object]) -> Settings:
    """Return the data set's settings without its location; word vectors by their file's name."""
    given = dict(dataset)
    if given.get("word_vectors"):
        # A path is local, but the file's name says which vectors they are.
        given["word_vectors"] = Path(str(given["word_vectors"])).name
    name = str(given.get("name"))
    return settings_of(None if DATASETS.is_own(name) else DATASETS[name], given, PLACES)


def method_settings(method: str, options: Mapping[str, object]) -> Settings:
    """Return a post-hoc method's settings without its label and the options that its objective never reads."""
    given = {"name": method, FITTED_ON: "val", **options}
    unread: tuple[str, ...] = (LABEL,)
    if method == "temperature":
        read = OF_OBJECTIVES[str(given.get("objective", "nll"))]
        # Options of other objectives may be written out in `sweep.yaml`, but have no effect.
        unread += tuple(key for every in OF_OBJECTIVES.values() for key in every if key not in read)
    return settings_of(None if POSTHOC.is_own(method) else POSTHOC[method], given, unread)


def trains(row: Row, number: PublishedNumber) -> bool:
    """Return whether a configuration has the loss and network of a number, with all of its options for them."""
    named = (("loss", number.loss), ("architecture", number.architecture))
    # Names first: most configurations differ there, and comparing options takes longer.
    if any(column_label(str(row.get(f"config_{part}_name"))) != name for part, name in named):
        return False
    for part, name in named:
        if not (wanted := options_of(number, part)):
            continue
        given = {option: value for option in wanted if (value := row.get(f"config_{part}_{option}")) is not None}
        if not _has(REGISTRIES[part][name], given, wanted):
            return False
    return True


def of_network(row: Row, number: PublishedNumber) -> bool:
    """Return whether a configuration has the network of a number, with any loss."""
    own = {key: value for key, value in number.options.items() if key.startswith("architecture.")}
    return trains({**row, "config_loss_name": number.loss}, replace(number, options=own))


def on_dataset(dataset: Mapping[str, object], number: PublishedNumber) -> bool:
    """Return whether a data set has a number's name and options; it must be whole unless the number names a share."""
    name = str(dataset.get("name"))
    if column_label(name) != number.dataset:
        return False
    component = DATASETS[name]
    share = component.hyperparameter(SHARE)
    whole = {SHARE: written(share.default)} if share is not None else {}
    return _has(component, dataset, {**whole, **options_of(number, "dataset")})


def options_of(number: PublishedNumber, part: str) -> dict[str, str]:
    """Return a number's options for one part of an experiment; options without a part belong to the loss."""
    split = [(*key.rpartition(".")[::2], value) for key, value in number.options.items() if key not in OF_FIGURES]
    return {option: value for of, option, value in split if (of or "loss") == part}


def _has(component: Component, given: Mapping[str, object], wanted: Mapping[str, str]) -> bool:
    defaults = {h.name: h.default for h in component.hyperparameters}
    return all(written(given.get(option, defaults.get(option))) == written(value) for option, value in wanted.items())


@dataclass(frozen=True)
class Recipe:
    """A shipped search space as the recipe of the numbers in the tables that it names.

    Attributes:
        space: name of the file, without `.yaml`.
        spec: checked search space, with the overrides.
        overrides: the `--set` options of its own command.
    """

    space: str
    spec: SweepSpec
    overrides: tuple[str, ...] = ()

    @cached_property
    def configurations(self) -> list[Row]:
        """Every configuration as a row of `config_…` columns."""
        return [configuration.columns for configuration in configurations(self.spec)]

    @cached_property
    def settings(self) -> frozenset[Settings]:
        """Every configuration's settings, as they are compared."""
        return frozenset(map(configuration_settings, self.configurations))

    @cached_property
    def fixed(self) -> dict[str, Settings]:
        """The settings that the recipe fixes besides its configurations, by part."""
        return fixed_by(self.spec.resolved())

    def holds(self, number: PublishedNumber) -> bool:
        """Return whether this recipe trains a number's configuration on its data set."""
        return on_dataset(self.spec.dataset, number) and any(trains(row, number) for row in self.configurations)

    def named(self, sweep: str) -> bool:
        """Return whether a sweep has the default name of a run or rehearsal of this search space."""
        return re.fullmatch(rf"{re.escape(self.space)}({REHEARSAL_SUFFIX})?(-\d+)?", sweep) is not None

    def method(self, number: PublishedNumber) -> Settings:
        """Return the settings of a number's post-hoc method, from the recipe's evaluation or else from the paper."""
        wanted = options_of(number, "posthoc")
        for entry in self.spec.evaluation.posthoc:
            if entry["name"] == number.posthoc and _has(POSTHOC[number.posthoc], entry, wanted):
                return method_settings(number.posthoc, entry)
        return method_settings(number.posthoc, wanted)


@cache
def recipes_of(table: str) -> tuple[Recipe, ...]:
    """Return the recipes of a published table: the shipped search spaces whose headers name it."""
    # The text is searched first: checking every shipped file takes seconds.
    mentioning = [name for name, path in packaged_files().items() if table in path.read_text(encoding="utf-8")]
    return tuple(recipe for recipe in map(shipped_recipe, mentioning) if table in recipe.spec.header.tables)


@cache
def shipped_recipe(space: str) -> Recipe:
    """Return a shipped search space as a recipe, with the overrides of its header's command."""
    path = packaged_files()[space]
    spec = load_spec(path)
    words = shlex.split(spec.header.command.partition(", then ")[0])
    overrides = tuple(following for word, following in pairwise(words) if word == "--set")
    return Recipe(space, load_spec(path, overrides) if overrides else spec, overrides)


def recipe_of(number: PublishedNumber) -> Recipe | None:
    """Return the recipe of a number; `None` if no shipped search space trains it, as for computed numbers."""
    return next((recipe for recipe in recipes_of(number.table) if recipe.holds(number)), None) if number.loss else None


def fixed_by(specification: Mapping[str, Any]) -> dict[str, Settings]:
    """Return the settings of a resolved search space that decide its numbers, besides its configurations, by part.

    A part that is not measured is absent. Only the parts of a recipe are compared: further measurements of a sweep
    change no number.
    """
    evaluation, scheduler, objective = (specification[part] for part in ("evaluation", "scheduler", "objective"))
    plain = {
        "epochs": scheduler["max_epochs"],
        "bins": evaluation["bins"],
        "loop": specification.get("loop"),
        "objective": f"{objective['metric']} {objective['mode']}",
        "precision": specification["training"]["precision"],
    }
    parts = {"": settings_of(None, plain), "data set": dataset_settings(specification["dataset"])}
    if rungs := scheduler.get("evaluate_epochs"):
        parts["evaluate_epochs"] = settings_of(None, {"": rungs})
    if isinstance(curvature := evaluation.get("curvature"), Mapping):
        parts["curvature"] = settings_of(MEASUREMENTS["curvature"], curvature, HOW_CURVATURE_IS_COMPUTED)
    if trajectory := evaluation.get("trajectory"):
        parts["trajectory"] = settings_of(None, trajectory)
    for entry in evaluation.get("metrics") or ():
        given = {"name": entry} if isinstance(entry, str) else entry
        name = str(given["name"])
        metric = None if METRICS.is_own(name) else METRICS[name]
        parts[f"metric {name}"] = settings_of(metric, given, ("name", LABEL))
    return parts


def differences(what: str, ours: Settings, theirs: Settings) -> list[str]:
    """Return in words the settings in which two differ, e.g. `data set split shuffled for stratified`."""
    sweep, recipe = dict(ours), dict(theirs)
    keys = sorted(key for key in sweep.keys() | recipe.keys() if sweep.get(key) != recipe.get(key))
    return [" ".join(filter(None, (what, k, _or_default(sweep, k), "for", _or_default(recipe, k)))) for k in keys]


def _or_default(settings: Mapping[str, str], key: str) -> str:
    return settings.get(key, "the default")

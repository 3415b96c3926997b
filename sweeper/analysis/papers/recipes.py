"""The recipe of a published number: the shipped search space that names its table and trains its configuration.

A sweep's numbers stand in the paper's place only where the sweep followed that recipe: the same data, split and share
of it, epochs, bins and at least as many seeds, and the same network, loss and optimiser to every hyperparameter.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

from search_spaces import packaged_files
from search_spaces.published_numbers import PublishedNumber
from sweeper.analysis.papers.matching import (
    Settings,
    configuration_settings,
    dataset_settings,
    is_method_of,
    method_settings,
    on_dataset,
    options_of,
    trains,
)
from sweeper.core.ids import flatten_configuration
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.space.rehearsal import SUFFIX
from sweeper.space.spec import SweepSpec
from sweeper.text.cells import Row


@dataclass(frozen=True)
class Recipe:
    """A shipped search space as the recipe of the numbers in the tables that it names.

    Attributes:
        space: the file's name, without `.yaml`.
        spec: what it says, with the overrides.
        overrides: the `--set` of its own command.
    """

    space: str
    spec: SweepSpec
    overrides: tuple[str, ...] = ()

    @cached_property
    def configurations(self) -> list[Row]:
        """Every configuration as a row of `config_…` columns."""
        return [flatten_configuration(each) for each in configurations(self.spec)]

    @cached_property
    def settings(self) -> frozenset[Settings]:
        """Every configuration as it is compared."""
        return frozenset(map(configuration_settings, self.configurations))

    @cached_property
    def _by_parts(self) -> dict[tuple[object, object], list[Row]]:
        found: dict[tuple[object, object], list[Row]] = {}
        for row in self.configurations:
            found.setdefault((row["config_loss_name"], row["config_architecture_name"]), []).append(row)
        return found

    def holds(self, number: PublishedNumber) -> bool:
        """Return whether a number's configuration is one of these, on its data."""
        if not on_dataset(self.spec.dataset, number):
            return False
        return any(trains(row, number) for row in self._by_parts.get((number.loss, number.architecture), ()))

    def named(self, sweep: str) -> bool:
        """Return whether a sweep has the name that a run or a rehearsal of this search space gets by itself."""
        return re.fullmatch(rf"{re.escape(self.space)}({SUFFIX})?(-\d+)?", sweep) is not None

    def method(self, number: PublishedNumber) -> Settings:
        """Return the post-hoc method behind a number: the evaluation's, or as printed where that has none."""
        for entry in self.spec.evaluation.posthoc:
            options = {key: value for key, value in entry.items() if key != "name"}
            if is_method_of(number, entry["name"], options):
                return method_settings(entry["name"], options)
        return method_settings(number.posthoc, options_of(number, "posthoc"))

    def departures(self, specification: Mapping[str, object], table: str) -> tuple[str, ...]:
        """Return how a sweep's specification departs from the recipe, a few words each; empty where it does not.

        Args:
            specification: the resolved search space, from `sweep.yaml`.
            table: the table that the sweep's header has to name.
        """
        header, dataset = _part(specification, "header"), _part(specification, "dataset")
        counts = (
            ("epochs", _part(specification, "scheduler").get("max_epochs"), self.spec.scheduler.max_epochs),
            ("bins", _part(specification, "evaluation").get("bins", 15), self.spec.evaluation.bins),
        )
        found = [f"{ours} {noun} for {theirs}" for noun, ours, theirs in counts if ours != theirs]
        seeds = _part(specification, "replicates").get("count", 1)
        if not isinstance(seeds, int) or seeds < self.spec.replicates.count:
            found.append(f"{seeds} {'seed' if seeds == 1 else 'seeds'} for {self.spec.replicates.count}")
        found += _differences("data set", dataset_settings(dataset), dataset_settings(self.spec.dataset))
        named = header.get("tables") or ()
        if not isinstance(named, (list, tuple)) or table not in named:
            found.append(f"its header does not name {table}")
        return tuple(found)

    def departures_of(self, row: Row) -> tuple[str, ...]:
        """Return how a configuration departs from the most similar one of the recipe."""
        ours = configuration_settings(row)
        if ours in self.settings:
            return ()
        nearest = min(self.settings, key=lambda settings: (len(settings ^ ours), sorted(settings)))
        return tuple(_differences("", ours, nearest))


@cache
def recipes_of(table: str) -> tuple[Recipe, ...]:
    """Return the recipes of a published table: the shipped search spaces whose headers name it, by name."""
    mentioning = [name for name, path in packaged_files().items() if table in path.read_text(encoding="utf-8")]
    return tuple(recipe for recipe in map(shipped_recipe, mentioning) if table in recipe.spec.header.tables)


@cache
def shipped_recipe(space: str) -> Recipe:
    """Return a shipped search space as a recipe, with what its header's command sets."""
    path = packaged_files()[space]
    spec = load_spec(path)
    words = shlex.split(spec.header.command.partition(", then ")[0])
    overrides = tuple(following for word, following in pairwise(words) if word == "--set")
    return Recipe(space, load_spec(path, overrides) if overrides else spec, overrides)


def recipe_of(number: PublishedNumber) -> Recipe | None:
    """Return the recipe of a number; `None` where no shipped search space trains it: it is computed, not trained."""
    return next((recipe for recipe in recipes_of(number.table) if recipe.holds(number)), None) if number.loss else None


def _part(specification: Mapping[str, object], key: str) -> Mapping[str, object]:
    part = specification.get(key)
    return part if isinstance(part, Mapping) else {}


def _differences(what: str, ours: Settings, theirs: Settings) -> list[str]:
    """Return the settings in which two differ, e.g. `data set split shuffled for stratified`."""
    here, there = dict(ours), dict(theirs)
    keys = sorted(key for key in here.keys() | there.keys() if here.get(key) != there.get(key))
    return [" ".join(filter(None, (what, key, _or_default(here, key), "for", _or_default(there, key)))) for key in keys]


def _or_default(settings: Mapping[str, str], key: str) -> str:
    return settings.get(key, "the default")

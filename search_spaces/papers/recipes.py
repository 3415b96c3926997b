"""The recipe of a published number: the shipped search space that names its table and trains its configuration.

A sweep's numbers fill the paper's cells only if the sweep followed that recipe: the same data, split and share of it,
epochs, bins, precision, objective and measurements, at least as many seeds, and the same network, loss and optimiser to
every hyperparameter. Values are compared as normalised text, because column types change them (`3`, `3.0`, `"3"`). A
hyperparameter at its default counts as not given.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from search_spaces import packaged_files
from search_spaces.papers.published_numbers import PublishedNumber
from sweeper.core.cells import Row
from sweeper.core.domains import part_of
from sweeper.core.ids import flatten_configuration
from sweeper.core.labels import REHEARSAL_SUFFIX
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.space.parts import Objective, Training
from sweeper.space.rehearsal import merged, rehearsed_architecture, rehearsed_dataset
from sweeper.space.spec import SweepSpec
from trainables.curvature.statistics.base import CurvatureSettings
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

#: Setting of the scheduler: epochs besides the last at which a sweep evaluates.
EVALUATE_EPOCHS = "evaluate_epochs"

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


def network_settings(row: Row) -> Settings:
    """Return the settings in a row's `config_architecture_…` columns."""
    return frozenset(setting for setting in configuration_settings(row) if setting[0].startswith("architecture."))


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


def is_method_of(number: PublishedNumber, method: str, options: Mapping[str, object]) -> bool:
    """Return whether a post-hoc method with these options is the number's."""
    return method == number.posthoc and _has(POSTHOC[method], options, options_of(number, "posthoc"))


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
        return [flatten_configuration(configuration) for configuration in configurations(self.spec)]

    @cached_property
    def settings(self) -> frozenset[Settings]:
        """Every configuration's settings, as they are compared."""
        return frozenset(map(configuration_settings, self.configurations))

    def holds(self, number: PublishedNumber) -> bool:
        """Return whether this recipe trains a number's configuration on its data set."""
        return on_dataset(self.spec.dataset, number) and any(trains(row, number) for row in self.configurations)

    def stand_ins(self, number: PublishedNumber) -> dict[Settings, str]:
        """Return the networks that a rehearsal trains instead of a number's: settings → their name in words.

        The words are empty for the number's own network.
        """
        data, stand_ins = rehearsed_dataset(self.spec.dataset, []), {}
        for row in self.configurations:
            if of_network(row, number):
                given = {k.removeprefix(NETWORK): v for k, v in row.items() if k.startswith(NETWORK) and v is not None}
                small = merged(rehearsed_architecture(given, data, []), self._rehearsed_network, "architecture")
                settings = network_settings({f"{NETWORK}{key}": value for key, value in small.items()})
                options = [f"{key.partition('.')[2]} {v}" for key, v in sorted(settings) if key != "architecture.name"]
                words = " ".join([column_label(str(small["name"])), *options])
                stand_ins[settings] = "" if settings == network_settings(row) else words
        return stand_ins

    @property
    def _rehearsed_network(self) -> Mapping[str, object]:
        """The network settings in the file's own `rehearsal`."""
        return part_of(self.spec.rehearsal or {}, "space", "architecture") or {}

    def named(self, sweep: str) -> bool:
        """Return whether a sweep has the default name of a run or rehearsal of this search space."""
        return re.fullmatch(rf"{re.escape(self.space)}({REHEARSAL_SUFFIX})?(-\d+)?", sweep) is not None

    def method(self, number: PublishedNumber) -> Settings:
        """Return the settings of a number's post-hoc method, from the recipe's evaluation or else from the paper."""
        for entry in self.spec.evaluation.posthoc:
            options = {key: value for key, value in entry.items() if key != "name"}
            if is_method_of(number, entry["name"], options):
                return method_settings(entry["name"], options)
        return method_settings(number.posthoc, options_of(number, "posthoc"))

    def departures(self, specification: Mapping[str, object], table: str) -> tuple[str, ...]:
        """Return how a sweep's specification departs from the recipe, a few words each; empty if it does not.

        Args:
            specification: resolved search space, from `sweep.yaml`.
            table: table that the sweep's header must name.
        """
        header, dataset = _part(specification, "header"), _part(specification, "dataset")
        counts = (
            ("epochs", _part(specification, "scheduler").get("max_epochs"), self.spec.scheduler.max_epochs),
            ("bins", _part(specification, "evaluation").get("bins", 15), self.spec.evaluation.bins),
        )
        departures = [f"{ours} {noun} for {theirs}" for noun, ours, theirs in counts if ours != theirs]
        departures += [
            f"{what} {given} for {ours}" for what, given, ours in self._chosen(specification) if given != ours
        ]
        departures += self._measurements(_part(specification, "evaluation"))
        # More seeds than the recipe's are no departure: they only make the number more certain.
        seeds = _part(specification, "replicates").get("count", 1)
        if not isinstance(seeds, int) or seeds < self.spec.replicates.count:
            departures.append(f"{seeds} {'seed' if seeds == 1 else 'seeds'} for {self.spec.replicates.count}")
        departures += _differences("data set", dataset_settings(dataset), dataset_settings(self.spec.dataset))
        named = header.get("tables") or ()
        if not isinstance(named, (list, tuple)) or table not in named:
            departures.append(f"its header does not name {table}")
        return tuple(departures)

    def _chosen(self, specification: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
        """Yield loop, objective, precision and evaluated epochs, each as (name, the sweep's, the recipe's)."""
        yield "loop", specification.get("loop"), self.spec.loop
        objective = {**Objective().model_dump(), **_part(specification, "objective")}
        ours = self.spec.objective
        yield "objective", f"{objective['metric']} {objective['mode']}", f"{ours.metric} {ours.mode}"
        precision = _part(specification, "training").get("precision", Training().precision)
        yield "precision", precision, self.spec.training.precision
        if rungs := getattr(self.spec.scheduler, EVALUATE_EPOCHS, None):
            evaluated = _part(specification, "scheduler").get(EVALUATE_EPOCHS) or []
            yield EVALUATE_EPOCHS, written(evaluated), written(rungs)

    def _measurements(self, evaluation: Mapping[str, object]) -> Iterator[str]:
        """Yield how a sweep's evaluation departs in curvature, metrics and trajectory, where the recipe has them."""
        ours, given = self.spec.evaluation, evaluation.get("curvature", {})
        if isinstance(ours.curvature, dict):
            if not isinstance(given, Mapping):
                yield "no curvature"
            else:
                yield from _differences("curvature", _curvature(given), _curvature(ours.curvature))
        entries: Any = evaluation.get("metrics")
        written_out = [{"name": entry} if isinstance(entry, str) else entry for entry in entries or ()]
        metrics = {entry["name"]: _metric(entry) for entry in written_out}
        for entry in ours.metrics:
            name = entry["name"]
            if name not in metrics:
                yield f"no metric {name}"
            else:
                yield from _differences(f"metric {name}", metrics[name], _metric(entry))
        if ours.trajectory is not None:
            theirs = settings_of(None, ours.trajectory.model_dump())
            yield from _differences("trajectory", settings_of(None, _part(evaluation, "trajectory")), theirs)

    def departures_of(self, row: Row) -> tuple[str, ...]:
        """Return how a configuration departs from the recipe's most similar one."""
        ours = configuration_settings(row)
        if ours in self.settings:
            return ()
        nearest = min(self.settings, key=lambda settings: (len(settings ^ ours), sorted(settings)))
        return tuple(_differences("", ours, nearest))


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


def _curvature(given: Mapping[str, object]) -> Settings:
    usual = asdict(CurvatureSettings())
    kept = {key: value for key, value in given.items() if key not in HOW_CURVATURE_IS_COMPUTED}
    return frozenset((k, written(v)) for k, v in kept.items() if k not in usual or written(v) != written(usual[k]))


def _metric(entry: Mapping[str, object]) -> Settings:
    name = str(entry["name"])
    return settings_of(None if METRICS.is_own(name) else METRICS[name], entry, ("name", LABEL))


def _part(specification: Mapping[str, object], key: str) -> Mapping[str, object]:
    part = specification.get(key)
    return part if isinstance(part, Mapping) else {}


def _differences(what: str, ours: Settings, theirs: Settings) -> list[str]:
    """Return in words the settings in which two differ, e.g. `data set split shuffled for stratified`."""
    sweep, recipe = dict(ours), dict(theirs)
    keys = sorted(key for key in sweep.keys() | recipe.keys() if sweep.get(key) != recipe.get(key))
    return [" ".join(filter(None, (what, k, _or_default(sweep, k), "for", _or_default(recipe, k)))) for k in keys]


def _or_default(settings: Mapping[str, str], key: str) -> str:
    return settings.get(key, "the default")

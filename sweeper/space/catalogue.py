"""The names that a search space file can use: registries, shipped files and keys, and the tables that list them.

`sweeper spaces` lists the files; with `--losses`, `--architectures`, `--datasets`, `--optimizers`, `--posthoc`,
`--metrics`, `--schedulers` or `--searchers` it lists the components of one kind, including those of installed packages.
Shells complete keys and names. `template` writes a commented search space from a few choices, for `sweeper init`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, get_args

from pydantic import BaseModel
from rich.table import Column, Table
from rich.text import Text

from search_spaces import locate, packaged_files
from sweeper.core.domains.base import DOMAINS
from sweeper.core.domains.values import Plain, Values, part_of
from sweeper.core.errors import SweeperError
from sweeper.core.labels import PARTS
from sweeper.scheduling import SCHEDULERS
from sweeper.search import SEARCHERS
from sweeper.space.file import read_document
from sweeper.space.spec import SweepSpec
from trainables.curvature.statistics.base import MEASUREMENTS
from trainables.metrics import METRIC_NAMES
from trainables.metrics.base import Metric, further_metrics
from trainables.metrics.refinement import REFINEMENT_COLUMNS
from trainables.metrics.weighted import WEIGHTED_COLUMNS
from trainables.registry import Component, ExtensionError, Hyperparameter, Registry
from trainables.registry.names import did_you_mean

if TYPE_CHECKING:
    from trainables.datasets.base import DataSetComponent

#: Metrics measured after every epoch. An objective is one of these, or `val_<metric>` with a metric of an evaluation.
EPOCH_METRICS = ("train_loss", "val_nll", "val_accuracy", "val_ece")


@dataclass(frozen=True)
class Registries:
    """All registries and names that a search space file can use.

    Attributes:
        losses, architectures, optimizers, datasets, posthoc: registries of components.
        metrics: names of the metrics that every evaluation measures, without the prefix `val_`.
        further_metrics: registry of metrics that are measured on request.
        curvature: registry with one component, the measurement of curvature.
        shifts: registry of shifts: evaluation splits that the data set itself does not have.
        loops: registry of the users' training loops.
        schedulers, searchers: registries of schedulers and searchers.
    """

    losses: Registry
    architectures: Registry
    optimizers: Registry
    datasets: Registry[DataSetComponent]
    posthoc: Registry
    metrics: tuple[str, ...]
    curvature: Registry
    further_metrics: Registry[Metric] = field(default_factory=lambda: Registry("metric", component=Metric))
    shifts: Registry = field(default_factory=lambda: Registry("evaluation split"))
    loops: Registry = field(default_factory=lambda: Registry("training loop"))
    schedulers: Registry = field(default_factory=lambda: SCHEDULERS)
    searchers: Registry = field(default_factory=lambda: SEARCHERS)

    @property
    def space(self) -> dict[str, Registry]:
        """Part of a space → its registry, in the order of the resolved file."""
        return {"loss": self.losses, "architecture": self.architectures, "optimizer": self.optimizers}

    @property
    def components(self) -> dict[str, Registry]:
        """Key of a search space → registry of the components named below it."""
        return {
            **self.space,
            "dataset": self.datasets,
            "posthoc": self.posthoc,
            "metrics": self.further_metrics,
            "splits": self.shifts,
            "loop": self.loops,
        }

    @property
    def objectives(self) -> tuple[str, ...]:
        """Every valid `objective.metric`."""
        return (*EPOCH_METRICS, *(n for n in (f"val_{m}" for m in self.metrics) if n not in EPOCH_METRICS))


def installed_registries() -> Registries:
    """Return the registries built into the project.

    Example:
        >>> registries = installed_registries()
        >>> "focal" in registries.losses, "val_ece" in registries.objectives
        (True, True)
    """
    # These import torch, which takes seconds: only commands that need the registries pay for it.
    from trainables.datasets.base import DATASETS
    from trainables.datasets.splits import EVALUATION_SPLITS
    from trainables.losses import LOSSES
    from trainables.models import ARCHITECTURES
    from trainables.posthoc import POSTHOC
    from trainables.training.own_loop import LOOPS
    from trainables.training.recipe import OPTIMIZERS

    components = (LOSSES, ARCHITECTURES, OPTIMIZERS, DATASETS, POSTHOC)
    metrics = (*METRIC_NAMES, *REFINEMENT_COLUMNS, *WEIGHTED_COLUMNS)
    return Registries(*components, metrics, MEASUREMENTS, further_metrics(), EVALUATION_SPLITS, LOOPS)


#: Kinds of components that can be listed. Each has a registry of that name; `metrics` lists the optional metrics.
KINDS = ("losses", "architectures", "datasets", "optimizers", "posthoc", "metrics", "schedulers", "searchers")


def list_spaces() -> dict[str, Values]:
    """Return name → header of the shipped search space files, without checking or importing anything.

    Example:
        >>> "quickstart" in list_spaces()
        True
    """
    return {name: part_of(read_document(path).values, "header") or {} for name, path in packaged_files().items()}


def list_components(kind: str) -> list[Component]:
    """Return the components of one of `KINDS`, in the order of their registry.

    If an installed component cannot be used, its summary states the reason.

    Example:
        >>> [component.name for component in list_components("searchers")]
        ['random', 'grid', 'optuna']
    """
    registry: Registry = getattr(installed_registries(), "further_metrics" if kind == "metrics" else kind)
    return [_component(registry, name) for name in registry]


def _component(registry: Registry, name: str) -> Component:
    try:
        return registry[name]
    except ExtensionError as error:
        return Component(name, dict, summary=f"cannot be used: {error}", source=registry.installed()[name])


def valid_text(description: Hyperparameter) -> str:
    """Return a description of a hyperparameter's valid values, e.g. `whole number in [1, inf)`."""
    if description.kind == "numbers":
        return f"list of numbers in {description.range_text}"
    whole = description.kind == "integer" and "whole" not in description.range_text
    return f"whole number in {description.range_text}" if whole else description.range_text


def spaces_table() -> Table:
    """Return the shipped search space files as a table for a terminal."""
    # Folded instead of cut, so that a name can be pasted into a command.
    name = Column("sweeper run …", no_wrap=True, overflow="fold")
    table = Table(name, "question", "cost", box=None, pad_edge=False)
    for space, header in list_spaces().items():
        table.add_row(space, str(header.get("question", "")), str(header.get("cost", "")))
    return table


def components_table(kind: str) -> Table:
    """Return the components of one of `KINDS` as a table for a terminal, with one row per hyperparameter."""
    table = Table(kind, "hyperparameter", "valid", "default", "source", box=None, pad_edge=False)
    for component in list_components(kind):
        table.add_row(Text(component.name, style="bold"), component.summary, "", "", component.source)
        for h in component.hyperparameters:
            default = "required" if h.required else value_text(h.default)
            table.add_row("", h.name, valid_text(h), default, h.source)
    return table


def value_text(value: object) -> str:
    """Return a default in the form that a search space file uses; `auto` if the component decides.

    Example:
        >>> value_text(0.1), value_text([1, 3]), value_text(None)
        ('0.1', '[1, 3]', 'auto')
    """
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def keys_of(space: str | None) -> list[str]:
    """Return the keys that `--set` accepts: the general keys, and the keys of the search space file if one is named."""
    keys = set(_of_model(SweepSpec, ""))
    if space is not None:
        # Completing in a shell must not print errors: a missing file is reported when the command runs.
        with suppress(SweeperError, OSError):
            keys |= set(_of_values(read_document(locate(space)).values, ""))
    return sorted(keys)


def values_of(key: str) -> list[str]:
    """Return the component names that can be the value of a key."""
    if key == "objective.metric":
        return sorted(installed_registries().objectives)
    part = key.removesuffix(".name").removeprefix("space.")
    light: dict[str, Registry] = {"scheduler": SCHEDULERS, "searcher": SEARCHERS}  # the others import torch
    named = installed_registries().components if part in PARTS else light
    return sorted(named.get(part, ()))


def _of_model(model: type[BaseModel], path: str) -> list[str]:
    paths = []
    for name, described in model.model_fields.items():
        if name in ("header", "rehearsal", "rehearsed"):
            continue
        place = f"{path}{name}"
        inner = [t for t in (described.annotation, *get_args(described.annotation)) if isinstance(t, type)]
        nested = next((t for t in inner if issubclass(t, BaseModel)), None)
        paths += _of_model(nested, f"{place}.") if nested is not None else [place]
    return paths


def _of_values(values: Plain, path: str) -> list[str]:
    """Return the paths of a file's values; a domain is one value."""
    if not isinstance(values, dict) or (len(values) == 1 and next(iter(values)) in DOMAINS):
        return [path] if path else []
    paths = [path] if "name" in values and path else []
    for key, value in values.items():
        if path or key not in ("header", "rehearsal", "rehearsed"):
            paths += _of_values(value, f"{path}.{key}" if path else str(key))
    return paths


#: The recipe of a new search space, unless the user gives other values.
USUAL_RECIPE = {"optimizer.lr": ["0.1"], "optimizer.momentum": ["0.9"], "optimizer.schedule": ["cosine"]}


#: Flags of `sweeper init` for the hyperparameters that a data set from a table needs.
_SHORT = {"file": ", or --table FILE", "target": ", or --target COLUMN"}


def template(
    dataset: str = "digits",
    losses: Sequence[str] = (),
    architectures: Sequence[str] = (),
    values: Mapping[str, Sequence[str]] | None = None,
    *,
    objective: str = "val_posthoc_temperature_nll",
    epochs: int = 27,
    replicates: int = 1,
    bins: int = 15,
) -> str:
    """Write a search space file with comments on the alternatives at each line.

    Args:
        dataset: name of the data set.
        losses: names of the losses; by default cross-entropy and focal loss.
        architectures: names of the architectures; by default `mlp`.
        values: path such as `loss.gamma` → values to try, written as YAML.
        objective: metric by which trials are compared.
        epochs: epochs of a trial that runs to the end.
        replicates: seeds of each configuration, before the final stage.
        bins: bins of the calibration errors.

    Raises:
        SweeperError: a name is unknown, or no component takes a value. The error lists all faults.

    Example:
        >>> text = template("digits", ["focal"], values={"loss.gamma": ["1", "3"]})
        >>> "{name: focal, gamma: {grid: [1, 3]}}" in text
        True
    """
    registries, values = installed_registries(), values or {}
    chosen: dict[str, tuple[Registry, Sequence[str]]] = {
        "dataset": (registries.datasets, [dataset]),
        "loss": (registries.losses, losses or ["cross_entropy", "focal"]),
        "architecture": (registries.architectures, architectures or ["mlp"]),
        "optimizer": (registries.optimizers, ["sgd"]),
    }
    faults = [str(registry.fault(n)) for registry, names in chosen.values() for n in names if n not in registry]
    named = {part: [known[name] for name in names if name in known] for part, (known, names) in chosen.items()}
    for path in values:
        part, _, key = path.partition(".")
        if not any(c.hyperparameter(key) for c in named.get(part, ())):
            known = tuple(f"{p}.{h.name}" for p, parts in named.items() for c in parts for h in c.hyperparameters)
            faults.append(f"no chosen component has {path!r}{did_you_mean(path, known)}")
    for part, components in named.items():
        missing = [
            h.name for c in components for h in c.hyperparameters if h.required and f"{part}.{h.name}" not in values
        ]
        faults += [f"{part} needs {key}: give --grid {part}.{key}=VALUE{_SHORT.get(key, '')}" for key in missing]
    if faults:
        remedy = "list the names with `sweeper spaces --losses`, `--architectures` and `--datasets`"
        raise SweeperError("\n".join(faults), remedy)
    text = resources.files("sweeper.space").joinpath("template.yaml").read_text("utf-8")
    import jinja2  # only `sweeper init` needs it

    filled = jinja2.Template(text, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    shown = {"objective": objective, "epochs": epochs, "replicates": replicates, "bins": bins, "tried": bool(values)}
    return str(filled.render(shown, named=named, values={**USUAL_RECIPE, **values}, component=_as_yaml, others=_others))


def _as_yaml(component: Component, part: str, values: Mapping[str, Sequence[str]]) -> str:
    """Write a component and its values as YAML in one line."""
    keys = [path.removeprefix(f"{part}.") for path in values if path.startswith(f"{part}.")]
    taken = [key for key in keys if component.hyperparameter(key)]
    written = [f"name: {component.name}", *(f"{key}: {_written(values[f'{part}.{key}'])}" for key in taken)]
    return f"{{{', '.join(written)}}}"


def _written(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{{grid: [{', '.join(values)}]}}"


def _others(component: Component, part: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one comment for each hyperparameter that keeps its default."""
    rest = [h for h in component.hyperparameters if f"{part}.{h.name}" not in values]
    return [f"#   {h.name}: {h.default}  ({valid_text(h)})" for h in rest]

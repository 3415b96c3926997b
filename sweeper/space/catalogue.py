"""What a search space file may name, and what shows it: registries, shipped files, keys.

`sweeper spaces` shows the files; `--losses`, `--architectures`, `--datasets`, `--optimizers`, `--posthoc`, `--metrics`,
`--schedulers` and `--searchers` show the components of one kind, those of installed packages among them. Keys and names
complete what is typed in a shell. `template` writes a commented search space from a few choices: `sweeper init`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, get_args

import jinja2
from pydantic import BaseModel
from rich.table import Column, Table
from rich.text import Text

from search_spaces import locate, packaged_files
from sweeper.core.domains import DOMAINS
from sweeper.core.errors import SweeperError
from sweeper.core.json_types import Plain, Values, part_of
from sweeper.core.labels import PARTS
from sweeper.scheduling import SCHEDULERS
from sweeper.search import SEARCHERS
from sweeper.space.file import read_document
from sweeper.space.spec import SweepSpec
from trainables.curvature.statistics.base import MEASUREMENTS
from trainables.metrics import METRIC_NAMES
from trainables.metrics.base import Metric, further_metrics
from trainables.metrics.refinement import REFINEMENT_COLUMNS
from trainables.registry import Component, ExtensionError, Hyperparameter, Registry
from trainables.registry.names import did_you_mean

if TYPE_CHECKING:
    from trainables.datasets.base import DataSetComponent

#: What is measured after every epoch; an objective may be one of these or `val_<metric of an evaluation>`.
EPOCH_METRICS = ("train_loss", "val_nll", "val_accuracy", "val_ece")


@dataclass(frozen=True)
class Registries:
    """Everything that can be named in a search space file.

    Attributes:
        losses, architectures, optimizers, datasets, posthoc: the registries of components.
        metrics: the names of an evaluation's metrics, without the prefix `val_`.
        further_metrics: the registry of metrics that are measured besides, where a file asks for them.
        curvature: the registry whose one component is the measurement of curvature.
        shifts: the registry of evaluation splits that are not the data set's own.
        loops: the registry of training loops, which are all the user's own.
        schedulers, searchers: the registries of what decides on trials and chooses configurations.
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
        """The parts of a space and their registries, in the order of the resolved file."""
        return {"loss": self.losses, "architecture": self.architectures, "optimizer": self.optimizers}

    @property
    def components(self) -> dict[str, Registry]:
        """The keys of a search space below which components are named, and the registry of each."""
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
    """Return what is built into the project. Imports torch, so only commands that need it call it."""
    from trainables.datasets.base import DATASETS
    from trainables.datasets.splits import EVALUATION_SPLITS
    from trainables.losses import LOSSES
    from trainables.models import ARCHITECTURES
    from trainables.posthoc import POSTHOC
    from trainables.training.own_loop import LOOPS
    from trainables.training.recipe import OPTIMIZERS

    components = (LOSSES, ARCHITECTURES, OPTIMIZERS, DATASETS, POSTHOC)
    metrics = (*METRIC_NAMES, *REFINEMENT_COLUMNS)
    return Registries(*components, metrics, MEASUREMENTS, further_metrics(), EVALUATION_SPLITS, LOOPS)


#: What can be listed: the registries of that name. Metrics are the optional ones.
KINDS = ("losses", "architectures", "datasets", "optimizers", "posthoc", "metrics", "schedulers", "searchers")


def list_spaces() -> dict[str, Values]:
    """Return the shipped search space files by name, each with its header; nothing is checked or imported."""
    return {name: part_of(read_document(path).values, "header") or {} for name, path in packaged_files().items()}


def list_components(kind: str, registries: Registries | None = None) -> list[Component]:
    """Return the components of one of `KINDS`, in the order of their registry. Raises KeyError for another kind.

    An installed one that cannot be used stands there with the reason as its summary.
    """
    if kind not in KINDS:
        raise KeyError(f"{kind!r} is not one of {', '.join(KINDS)}")
    held = "further_metrics" if kind == "metrics" else kind
    registry: Registry = getattr(registries or installed_registries(), held)
    return [_component(registry, name) for name in registry]


def _component(registry: Registry, name: str) -> Component:
    try:
        return registry[name]
    except ExtensionError as error:
        return Component(name, dict, summary=f"cannot be used: {error}", source=registry.installed()[name])


def valid_text(description: Hyperparameter) -> str:
    """Return a hyperparameter's valid values, e.g. `whole number in [1, inf)`."""
    if description.kind == "numbers":
        return f"list of numbers in {description.range_text}"
    whole = description.kind == "integer" and "whole" not in description.range_text
    return f"whole number in {description.range_text}" if whole else description.range_text


def spaces_table() -> Table:
    """Return the shipped search space files as a table for a terminal; names are whole, to be pasted."""
    name = Column("sweeper run …", no_wrap=True, overflow="fold")
    table = Table(name, "question", "cost", box=None, pad_edge=False)
    for space, header in list_spaces().items():
        table.add_row(space, str(header.get("question", "")), str(header.get("cost", "")))
    return table


def components_table(kind: str, registries: Registries | None = None) -> Table:
    """Return the components of one of `KINDS` as a table for a terminal, one row per hyperparameter."""
    columns = (kind, "hyperparameter", "valid", "default", "source")
    table = Table(*columns, box=None, pad_edge=False)
    for component in list_components(kind, registries):
        table.add_row(Text(component.name, style="bold"), component.summary, "", "", component.source)
        for h in component.hyperparameters:
            default = "required" if h.required else value_text(h.default)
            table.add_row("", h.name, valid_text(h), default, h.source)
    return table


def value_text(value: object) -> str:
    """Return a default as a search space file would write it; `auto` where the component decides."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def keys_of(space: str | None) -> list[str]:
    """Return the keys that `--set` takes: those of the model, and those of a search space file where one is named."""
    found = set(_of_model(SweepSpec, ""))
    if space is not None:
        with suppress(SweeperError, OSError):
            found |= set(_of_values(read_document(locate(space)).values, ""))
    return sorted(found)


def values_of(key: str) -> list[str]:
    """Return the names that a key's value may have: those of components, or true and false."""
    if key == "objective.metric":
        return sorted(installed_registries().objectives)
    part = key.removesuffix(".name").removeprefix("space.")
    light: dict[str, Registry] = {"scheduler": SCHEDULERS, "searcher": SEARCHERS}  # the others bring torch along
    named = installed_registries().components if part in PARTS else light
    return sorted(named.get(part, ()))


def _of_model(model: type[BaseModel], path: str) -> list[str]:
    found = []
    for name, described in model.model_fields.items():
        if name in ("header", "rehearsal", "rehearsed"):
            continue
        place = f"{path}{name}"
        inner = [t for t in (described.annotation, *get_args(described.annotation)) if isinstance(t, type)]
        nested = next((t for t in inner if issubclass(t, BaseModel)), None)
        found += _of_model(nested, f"{place}.") if nested is not None else [place]
    return found


def _of_values(values: Plain, path: str) -> list[str]:
    """Return the paths of a file's values; a domain is one value."""
    if not isinstance(values, dict) or (len(values) == 1 and next(iter(values)) in DOMAINS):
        return [path] if path else []
    found = [path] if "name" in values and path else []
    for key, value in values.items():
        if path or key not in ("header", "rehearsal", "rehearsed"):
            found += _of_values(value, f"{path}.{key}" if path else str(key))
    return found


#: The recipe of a new search space, where nothing is asked about it.
USUAL_RECIPE = {"optimizer.lr": ["0.1"], "optimizer.momentum": ["0.9"], "optimizer.schedule": ["cosine"]}


#: Flags of `sweeper init` for what a table needs.
_SHORT = {"file": ", or --table FILE", "target": ", or --target COLUMN"}


def template(
    dataset: str = "digits",
    losses: Sequence[str] = (),
    architectures: Sequence[str] = (),
    values: Mapping[str, Sequence[str]] | None = None,
    *,
    objective: str = "val_nll",
    epochs: int = 27,
    replicates: int = 1,
) -> str:
    """Return a search space file with a comment on each line that says what else it may hold.

    Args:
        dataset: its name.
        losses: their names; cross-entropy and focal loss where none are named.
        architectures: their names; `mlp` where none are named.
        values: path such as `loss.gamma` → the values to try, as YAML.
        objective: metric that trials are compared by.
        epochs: of a trial that is not stopped.
        replicates: seeds of each configuration, before the final stage.

    Raises:
        SweeperError: with every unknown name and every value that nothing takes.
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
            known = tuple(f"{p}.{h.name}" for p, found in named.items() for c in found for h in c.hyperparameters)
            faults.append(f"nothing takes {path!r}{did_you_mean(path, known)}")
    for part, components in named.items():
        missing = [
            h.name for c in components for h in c.hyperparameters if h.required and f"{part}.{h.name}" not in values
        ]
        faults += [f"{part} needs {key}: give --grid {part}.{key}=VALUE{_SHORT.get(key, '')}" for key in missing]
    if faults:
        raise SweeperError("\n".join(faults), "see `sweeper spaces --losses`, `--architectures` and `--datasets`")
    text = resources.files("sweeper.space").joinpath("template.yaml").read_text("utf-8")
    filled = jinja2.Template(text, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    shown = {"objective": objective, "epochs": epochs, "replicates": replicates, "tried": bool(values)}
    return str(filled.render(shown, named=named, values={**USUAL_RECIPE, **values}, component=_as_yaml, others=_others))


def _as_yaml(component: Component, part: str, values: Mapping[str, Sequence[str]]) -> str:
    """Return a component with the values that it takes, as YAML in one line."""
    keys = [path.removeprefix(f"{part}.") for path in values if path.startswith(f"{part}.")]
    taken = [key for key in keys if component.hyperparameter(key)]
    written = [f"name: {component.name}", *(f"{key}: {_written(values[f'{part}.{key}'])}" for key in taken)]
    return f"{{{', '.join(written)}}}"


def _written(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{{grid: [{', '.join(values)}]}}"


def _others(component: Component, part: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a comment for each hyperparameter that is left at its default."""
    rest = [h for h in component.hyperparameters if f"{part}.{h.name}" not in values]
    return [f"#   {h.name}: {h.default}  ({valid_text(h)})" for h in rest]

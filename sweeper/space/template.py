"""A commented search space from a few choices: what `sweeper init` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

import jinja2

from sweeper.core.errors import SweeperError
from sweeper.space.catalogue import Registries, installed_registries, valid_text
from trainables.registry import Component, Registry
from trainables.registry.names import did_you_mean


@dataclass(frozen=True)
class TemplateOptions:
    """What a new search space is to hold.

    Attributes:
        dataset: its name.
        losses: their names.
        architectures: their names.
        values: path such as `loss.gamma` → the values to try, as YAML.
        objective: metric that trials are compared by.
        epochs: of a trial that is not stopped.
        replicates: seeds of each configuration.
        samples: configurations drawn for each grid point.
    """

    dataset: str = "digits"
    losses: Sequence[str] = ("cross_entropy", "focal")
    architectures: Sequence[str] = ("mlp",)
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    objective: str = "val_nll"
    epochs: int = 27
    replicates: int = 2
    samples: int = 1


def template(options: TemplateOptions, registries: Registries | None = None) -> str:
    """Return a search space file with a comment on each line that says what else it may hold.

    Raises:
        SweeperError: with every unknown name and every value that nothing takes.
    """
    registries = registries or installed_registries()
    components = {
        "dataset": _chosen(registries.datasets, [options.dataset]),
        "loss": _chosen(registries.losses, options.losses),
        "architecture": _chosen(registries.architectures, options.architectures),
        "optimizer": _chosen(registries.optimizers, ["sgd"]),
    }
    faults = [fault for part, found in components.items() for fault in found if isinstance(fault, str)]
    named = {part: [c for c in found if isinstance(c, Component)] for part, found in components.items()}
    for path in options.values:
        part, _, key = path.partition(".")
        takers = [c for c in named.get(part, ()) if c.hyperparameter(key)]
        if not takers:
            known = tuple(f"{p}.{h.name}" for p, found in named.items() for c in found for h in c.hyperparameters)
            faults.append(f"nothing takes {path!r}{did_you_mean(path, known)}")
    if faults:
        raise SweeperError("\n".join(faults), "see `sweeper spaces --losses`, `--architectures` and `--datasets`")
    return _text(options, named)


def _chosen(registry: Registry, names: Sequence[str]) -> list[Component | str]:
    return [registry[name] if name in registry else str(registry.fault(name)) for name in names]


def _text(options: TemplateOptions, named: Mapping[str, Sequence[Component]]) -> str:
    values = options.values
    sgd = ["name: sgd", *([] if "optimizer.lr" in values else ["lr: 0.1"])]
    sgd += [f"{key}: {_written(values[f'optimizer.{key}'])}" for key in _own("optimizer", values)]
    text = resources.files("sweeper.space").joinpath("template.yaml").read_text("utf-8")
    filled = jinja2.Template(text, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return str(filled.render(vars(options), sgd=sgd, named=named, component=_component, others=_others))


def _own(part: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    return [path.partition(".")[2] for path in values if path.startswith(f"{part}.")]


def _component(component: Component, part: str, values: Mapping[str, Sequence[str]]) -> str:
    """Return a component with the values that it takes, as YAML in one line."""
    taken = [key for key in _own(part, values) if component.hyperparameter(key)]
    written = [f"name: {component.name}", *(f"{key}: {_written(values[f'{part}.{key}'])}" for key in taken)]
    return f"{{{', '.join(written)}}}"


def _written(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{{grid: [{', '.join(values)}]}}"


def _others(component: Component, part: str, values: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a comment for each hyperparameter that is left at its default."""
    rest = [h for h in component.hyperparameters if h.name not in _own(part, values)]
    return [f"#   {h.name}: {h.default}  ({valid_text(h)})" for h in rest]

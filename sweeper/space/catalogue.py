"""What can be written in a search space file, as data: shipped files, and components with their hyperparameters.

`sweeper spaces` shows the files; `--losses`, `--architectures`, `--datasets`, `--optimizers`, `--posthoc`, `--metrics`,
`--schedulers` and `--searchers` show the components of one kind, those of installed packages among them. Keys and names
complete what is typed in a shell.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from search_spaces import locate, packaged_files
from sweeper.core.errors import SweeperError
from sweeper.core.plain import Plain
from sweeper.space.domains.domains import DOMAINS
from sweeper.space.file import read_document
from sweeper.space.registries import Registries, installed_registries
from sweeper.space.spec import SweepSpec
from trainables.registry import Component, ExtensionError, Hyperparameter, Registry

KINDS = {
    "losses": "losses",
    "architectures": "architectures",
    "datasets": "datasets",
    "optimizers": "optimizers",
    "posthoc": "posthoc",
    "metrics": "further_metrics",
    "schedulers": "schedulers",
    "searchers": "searchers",
}
"""What can be listed, and the registry that holds it. Metrics are the optional ones."""


@dataclass(frozen=True)
class SpaceEntry:
    """A shipped search space file: its name and header."""

    name: str
    question: str
    cost: str
    command: str


def list_spaces() -> list[SpaceEntry]:
    """Return the shipped search space files, by name. Reads their headers only; nothing is checked or imported."""
    entries = []
    for name, path in packaged_files().items():
        header = read_document(path).values.get("header")
        header = header if isinstance(header, dict) else {}
        entries.append(SpaceEntry(name, *(str(header.get(key, "")) for key in ("question", "cost", "command"))))
    return entries


def list_components(kind: str, registries: Registries | None = None) -> list[Component]:
    """Return the components of one of `KINDS`, in the order of their registry. Raises KeyError for another kind.

    An installed one that cannot be used stands there with the reason as its summary.
    """
    if kind not in KINDS:
        raise KeyError(f"{kind!r} is not one of {', '.join(KINDS)}")
    registry: Registry = getattr(registries or installed_registries(), KINDS[kind])
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
    table = Table(box=None, pad_edge=False)
    table.add_column("sweeper run …", no_wrap=True, overflow="fold")
    table.add_column("question")
    table.add_column("cost")
    for entry in list_spaces():
        table.add_row(entry.name, entry.question, entry.cost)
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


NAMED = {
    "dataset": "datasets", "space.loss": "losses", "space.architecture": "architectures",
    "space.optimizer": "optimizers", "scheduler": "schedulers", "searcher": "searchers",
}  # fmt: skip
"""Keys whose value names a component, and its registry."""


def keys_of(space: str | None) -> list[str]:
    """Return the keys that `--set` takes: those of the model, and those of a search space file where one is named."""
    found = set(_of_model(SweepSpec, ""))
    if space is not None:
        with suppress(SweeperError, OSError):
            found |= set(_of_values(read_document(locate(space)).values, ""))
    return sorted(found)


def values_of(key: str) -> list[str]:
    """Return the names that a key's value may have: those of components, or true and false."""
    from sweeper.space.registries import installed_registries

    if key in NAMED or key.removesuffix(".name") in NAMED:
        return sorted(getattr(installed_registries(), NAMED[key.removesuffix(".name")]))
    if key == "objective.metric":
        return sorted(installed_registries().objectives)
    return []


def _of_model(model: type[BaseModel], path: str) -> list[str]:
    found = []
    for name, field in model.model_fields.items():
        if name in ("header", "rehearsal", "rehearsed"):
            continue
        place = f"{path}{name}"
        inner = [t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type)]
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

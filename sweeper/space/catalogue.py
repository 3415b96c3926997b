"""What can be written in a search space file, as data: shipped files, and components with their hyperparameters.

`sweeper spaces` shows the files; `--losses`, `--architectures`, `--datasets`, `--optimizers`, `--posthoc`, `--metrics`,
`--schedulers` and `--searchers` show the components of one kind, those of installed packages among them.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from search_spaces import packaged_files
from sweeper.space.file import read_document
from sweeper.space.registries import Registries, installed_registries
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


@dataclass(frozen=True)
class HyperparameterEntry:
    """One hyperparameter in words."""

    name: str
    valid: str
    default: str
    source: str
    reason: str


@dataclass(frozen=True)
class ComponentEntry:
    """One component in words."""

    name: str
    summary: str
    source: str
    hyperparameters: tuple[HyperparameterEntry, ...]


def list_spaces() -> list[SpaceEntry]:
    """Return the shipped search space files, by name. Reads their headers only; nothing is checked or imported."""
    entries = []
    for name, path in packaged_files().items():
        header = read_document(path).values.get("header")
        header = header if isinstance(header, dict) else {}
        entries.append(SpaceEntry(name, *(str(header.get(key, "")) for key in ("question", "cost", "command"))))
    return entries


def list_components(kind: str, registries: Registries | None = None) -> list[ComponentEntry]:
    """Return the components of one of `KINDS`, in the order of their registry. Raises KeyError for another kind."""
    if kind not in KINDS:
        raise KeyError(f"{kind!r} is none of {', '.join(KINDS)}")
    registry: Registry = getattr(registries or installed_registries(), KINDS[kind])
    return [_entry(registry, name) for name in registry]


def _entry(registry: Registry, name: str) -> ComponentEntry:
    try:
        return _component_entry(registry[name])
    except ExtensionError as error:
        return ComponentEntry(name, f"cannot be used: {error}", registry.installed()[name], ())


def _component_entry(component: Component) -> ComponentEntry:
    hyperparameters = tuple(map(_hyperparameter_entry, component.hyperparameters))
    return ComponentEntry(component.name, component.summary, component.source, hyperparameters)


def _hyperparameter_entry(description: Hyperparameter) -> HyperparameterEntry:
    valid = f"list of numbers in {description.range_text}" if description.kind == "numbers" else description.range_text
    if description.kind == "integer" and "whole" not in valid:
        valid = f"whole number in {valid}"
    default = "required" if description.required else value_text(description.default)
    return HyperparameterEntry(description.name, valid, default, description.source, description.reason)


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
    for entry in list_components(kind, registries):
        table.add_row(f"[bold]{escape(entry.name)}[/]", escape(entry.summary), "", "", escape(entry.source))
        for h in entry.hyperparameters:
            table.add_row("", *map(escape, (h.name, h.valid, h.default, h.source)))
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

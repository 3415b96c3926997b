"""A search space: its parts, their components, the columns and lines that follow from them, and its draws."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from sweeper.core.domains.nodes import Chooser, Fields, Members, Node
from trainables.registry import Registry
from trainables.registry.configuration import NAME, Configuration, columns_of

#: The part of a space that holds varying options of the data set.
DATASET = "dataset"


class Space(Fields):
    """A checked search space: one node for each part, such as `loss`, `architecture` and `optimizer`.

    A part is a component or a list of components to choose from. The hyperparameters of a user's training loop stand
    next to them as plain values.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> space = load_spec("quickstart").space
        >>> space.names("architecture"), space.column_types["config_optimizer_lr"]
        (['mlp', 'resnet8'], <class 'float'>)
        >>> [*space.lines]
        ['loss.name', 'loss.gamma', 'loss.coverage', 'loss.nu', 'loss.score', 'architecture.name', 'optimizer.lr']
    """

    def configuration(self, point: int, choose: Chooser) -> Configuration:
        """Return the configuration of a grid point that follows from choices."""
        return Configuration(self.draw("", point, choose))

    def every_configuration(self) -> Iterator[Configuration]:
        """Yield every configuration of a finite space without grids; overlapping members repeat configurations."""
        return map(Configuration, self.every_value())

    def at_point(self, point: int) -> Space:
        """Return the space with one member of each grid, chosen by the number of a grid point."""
        return Space(super().at_point(point).nodes)

    def components(self, part: str) -> list[Fields]:
        """Return the components that a part can draw; empty if the space lacks the part."""
        return [*_components(self.nodes[part])] if part in self.nodes else []

    def names(self, part: str) -> list[str]:
        """Return the distinct names of the components that a part can draw."""
        return [*dict.fromkeys(map(_name, self.components(part)))]

    @cached_property
    def column_types(self) -> dict[str, type]:
        """The type of every hyperparameter column over all branches: `{"config_loss_gamma": float, …}`.

        Types are bool, int, float and str. If branches have different types, the column is float for numbers and str
        otherwise. Lists are JSON text, as `Configuration.columns` has them.
        """
        types: dict[str, type] = {}
        for _, column, value in _column_values(self):
            kind = type(value) if isinstance(value, (bool, int, float)) else str
            before = types.setdefault(column, kind)
            if before is not kind:
                types[column] = float if {before, kind} <= {int, float} else str
        return types

    @cached_property
    def varying_columns(self) -> tuple[str, ...]:
        """The columns that vary: component names, and hyperparameters with several values for one component.

        A hyperparameter that two components share only by name (the width of two networks) does not count as varying.
        """
        values: dict[str, dict[str, set[object]]] = {}
        for component, column, value in _column_values(self):
            values.setdefault(column, {}).setdefault(component, set()).add(value)
        return tuple(column for column, seen in values.items() if any(len(s) > 1 for s in seen.values()))

    @property
    def lines(self) -> dict[str, dict[str, Node]]:
        """Path → component → domain, for hyperparameters that the space draws from several values.

        The path of a part with several components is `loss.name`, and its domains are the components. A hyperparameter
        of a user's training loop belongs to no component, so its component is empty.
        """
        lines: dict[str, dict[str, Node]] = {}
        for part, node in self.nodes.items():
            components = self.components(part)
            if not components and _draws_values(node):
                lines[part] = {"": node}
            if len(self.names(part)) > 1:
                lines[f"{part}.{NAME}"] = {_name(component): component for component in components}
            for component in components:
                own = {key: domain for key, domain in component.nodes.items() if key != NAME and _draws_values(domain)}
                for key, domain in own.items():
                    lines.setdefault(f"{part}.{key}", {})[_name(component)] = domain
        return lines

    def renamed_quantities(self, registries: Mapping[str, Registry]) -> dict[str, dict[str, str]]:
        """Return column → component → quantity, for hyperparameters that are quantities by another name.

        Readers cannot ask the components themselves: importing them takes seconds, and runs users' code.

        Example:
            >>> from sweeper.space.catalogue import installed_registries
            >>> from sweeper.space.loading import load_spec
            >>> load_spec("gamma_tau_nu").space.renamed_quantities(installed_registries().space)
            {'config_loss_weight': {'hessian_trace': 'tau'}}
        """
        columns: dict[str, dict[str, str]] = {}
        for part, registry in registries.items():
            for name in self.names(part):
                for own in registry[name].hyperparameters if name in registry else ():
                    if own.quantity:
                        columns.setdefault(f"config_{part}_{own.name}", {})[name] = own.quantity
        return columns

    @property
    def data_sets(self) -> list[Configuration]:
        """Every data set that configurations name, with its options; empty if no option varies."""
        part = self.nodes.get(DATASET)
        if not isinstance(part, Fields):
            return []
        values = [
            [(key, value) for _, value in node.extremes() or [("", node.plain())]] for key, node in part.nodes.items()
        ]
        return [Configuration(dict(combination)) for combination in itertools.product(*values)]


def _name(component: Fields) -> str:
    return str(component.nodes[NAME].plain())


def _components(node: Node) -> Iterator[Fields]:
    if isinstance(node, Fields):
        yield node
    elif isinstance(node, Members):
        for member in node.nodes:
            yield from _components(member)


def _draws_values(node: Node) -> bool:
    values = [value for _, value in node.extremes()]
    return len({*map(repr, values)}) > 1 and not any(isinstance(value, list | dict) for value in values)


def _column_values(node: Node, column: str = "config", component: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield (component, column, value) for every value of a column. An interval yields its two ends.

    The component is the name to which the hyperparameter belongs; it is empty for the names themselves.
    """
    if isinstance(node, Fields):
        name = _name(node) if NAME in node.nodes else component
        for key, member in node.nodes.items():
            yield from _column_values(member, f"{column}_{key}", "" if key == NAME else name)
    elif isinstance(node, Members):
        for member in node.nodes:
            yield from _column_values(member, column, component)
    else:
        for _, value in node.extremes():
            yield from ((component, name, leaf) for name, leaf in columns_of(column, value))

"""Configuration *i* of a search space: a function of (space, seed, *i*) alone.

Every domain draws from its own generator, seeded by (seed, *i*, the domain's path in the file), so a key that is
added to a space changes no other draw, and any configuration can be drawn again on any machine without those before it.
Grid points come in turn: configuration *i* has grid point *i* mod (number of grid points).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from sweeper.core.ids import configuration_seed, flatten_configuration, seed_from
from sweeper.space.domains.choices import Configuration, Uniforms, draw_configuration
from sweeper.space.domains.domains import Fields, Members, Node, extremes, grid_size, plain
from sweeper.space.spec import SweepSpec

EXAMPLES = 2000
"""Random configurations that are examined where a sweep has none yet: enough to meet every branch."""


class ByIndex(Sequence[Configuration]):
    """Lazily computed configurations: subclasses define `_at` and `__len__`."""

    @overload
    def __getitem__(self, index: int) -> Configuration: ...
    @overload
    def __getitem__(self, index: slice) -> list[Configuration]: ...
    def __getitem__(self, index: int | slice) -> Configuration | list[Configuration]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"configuration {index} of {len(self)}")
        return self._at(i)

    @abstractmethod
    def _at(self, index: int) -> Configuration:
        """Return configuration `index`, which is one."""


class Configurations(ByIndex):
    """All configurations of a sweep, each drawn on access."""

    def __init__(self, spec: SweepSpec, samples: int | None = None) -> None:
        """Draw from the space of `spec`: `samples` a grid point, by default as many as the sweep has."""
        self._space = spec.space
        self._seed = spec.seed
        self.grid_points = grid_size(self._space)
        self._count = self.grid_points * (spec.samples if samples is None else samples)

    def __len__(self) -> int:
        return self._count

    def _at(self, index: int) -> Configuration:
        seed = configuration_seed(self._seed, index)
        return draw_configuration(self._space, index % self.grid_points, Uniforms(lambda path: _uniform(seed, path)))


def configurations(spec: SweepSpec) -> Configurations:
    """Return the sweep's configurations, nested dicts such as `{"loss": {"name": "focal", "gamma": 3.0}, …}`.

    Where the searcher learns, they are not the sweep's own, which `suggested` has, but as many random ones.
    """
    return Configurations(spec)


def examples(spec: SweepSpec) -> Configurations:
    """Return what to examine before a sweep starts: its configurations, or random ones where it has none yet."""
    return Configurations(spec, EXAMPLES) if spec.searcher.learns else Configurations(spec)


def configuration(spec: SweepSpec, i: int) -> Configuration:
    """Return configuration `i`. Raises IndexError when the sweep has fewer."""
    return Configurations(spec)[i]


def column_types(space: Fields) -> dict[str, type]:
    """Return the type of every hyperparameter column over all branches: `{"config_loss_gamma": float, …}`.

    Types are bool, int, float and str. Where branches disagree, numbers become float and anything else str; lists are
    JSON text, as `flatten_configuration` writes them.
    """
    types: dict[str, type] = {}
    for _, column, value in _column_values(space):
        here = type(value) if isinstance(value, (bool, int, float)) else str
        before = types.setdefault(column, here)
        if before is not here:
            types[column] = float if {before, here} <= {int, float} else str
    return types


def varying_columns(space: Fields) -> tuple[str, ...]:
    """Return the hyperparameter columns that the sweep varies: names, and what differs among equal names.

    A hyperparameter that two components share by name only (the width of one architecture and of another) does not
    vary by itself.
    """
    values: dict[str, dict[str, set[object]]] = {}
    for component, column, value in _column_values(space):
        values.setdefault(column, {}).setdefault(component, set()).add(value)
    return tuple(column for column, seen in values.items() if any(len(s) > 1 for s in seen.values()))


def named_components(part: Node) -> list[str]:
    """Return the names of the components that a part of a space, such as `space.nodes["loss"]`, may draw, each once."""
    return [*dict.fromkeys(str(plain(component.nodes["name"])) for component in _components(part))]


def _uniform(seed: int, path: str) -> float:
    """Return one number in [0, 1) from the generator of the domain at `path`."""
    return float(np.random.Generator(np.random.PCG64(seed_from(seed, path))).random())


def _column_values(space: Fields) -> Iterator[tuple[str, str, object]]:
    """Yield (component, column, value) for every value a column may take; an interval gives its two ends.

    The component is the name whose hyperparameter the column is; empty for the names themselves.
    """
    for part, node in space.nodes.items():
        for component in _components(node):
            name = str(plain(component.nodes["name"]))
            for key, member in component.nodes.items():
                for _, value in extremes(member):
                    flat = flatten_configuration({part: {key: value}})
                    yield from (("" if key == "name" else name, column, v) for column, v in flat.items())


def _components(node: Node) -> Iterator[Fields]:
    if isinstance(node, Fields):
        yield node
    elif isinstance(node, Members):
        for member in node.nodes:
            yield from _components(member)

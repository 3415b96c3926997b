"""A configuration as the choices that lead to it: one for each domain on its way through a parsed space.

A domain is known by its path in the file (`loss.one_of[1].gamma`), so hyperparameters of one name in two branches stay
two, and a choice exists only where its branch was taken. Choices are plain values: a member's place in `choice` and
`one_of`, the number itself in an interval, the number of steps in `quniform`. `draw` makes a configuration of choices,
whoever makes those; `choices_of` finds the choices that lead to a configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sweeper.core.key_paths import join_path
from sweeper.core.plain import Plain
from sweeper.space.domains.domains import Constant, Fields, Interval, Members, Node, grid_size

Choice = int | float

Configuration = dict[str, dict[str, Plain]]
"""`{"loss": {"name": "focal", "gamma": 3.0}, "architecture": …, "optimizer": …}`: a component for each part."""


class Chooser(Protocol):
    """The source of choices; each is requested once."""

    def member(self, path: str, members: Members) -> int:
        """Return the place of one member of the `choice` or `one_of` at `path`."""

    def number(self, path: str, interval: Interval) -> Choice:
        """Return a number within the interval at `path`; of `quniform`, how many steps above its low end."""


@dataclass(frozen=True)
class Uniforms:
    """Chooses at random, from one uniform number in [0, 1) for each path."""

    at: Callable[[str], float]

    def member(self, path: str, members: Members) -> int:
        """Return a member's place, each equally likely."""
        return int(self.at(path) * len(members.nodes))

    def number(self, path: str, interval: Interval) -> Choice:
        """Return a number, distributed as the interval's kind says."""
        u, low, high = self.at(path), interval.low, interval.high
        if interval.kind == "uniform":
            return min(low + u * (high - low), float(high))
        if interval.kind == "loguniform":
            value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
            return min(max(value, float(low)), float(high))  # exp(log(low)) may round to the outside
        if interval.kind == "randint":
            return int(low) + int(u * (int(high) - int(low) + 1))
        return int(u * (interval.steps + 1))


def draw_configuration(space: Fields, point: int, choose: Chooser) -> Configuration:
    """Return one configuration of a checked space, whose parts all draw components; see `draw`."""
    drawn = draw(space, "", point, choose)
    assert isinstance(drawn, dict)
    return {part: component for part, component in drawn.items() if isinstance(component, dict)}


def draw(node: Node, path: str, point: int, choose: Chooser) -> Plain:
    """Return one value of `node`: grid point `point`, everything else as `choose` says.

    Args:
        node: the parsed space or a part of it.
        path: of `node` in the file; empty for the space itself.
        point: which grid point below `node`, counted from 0.
        choose: makes the choices, in the order of the file.
    """
    if isinstance(node, Constant):
        return list(node.value) if isinstance(node.value, list) else node.value
    if isinstance(node, Interval):
        return _value(node, choose.number(path, node))
    if isinstance(node, Fields):
        values: dict[str, Plain] = {}
        for key, member in node.nodes.items():
            point, own = divmod(point, grid_size(member)) if point else (0, 0)  # most spaces have one grid point
            values[key] = draw(member, join_path(path, key), own, choose)
        return values
    if node.kind == "grid":
        index = 0
        while point >= grid_size(node.nodes[index]):
            point -= grid_size(node.nodes[index])
            index += 1
    else:
        index = choose.member(path, node)
    return draw(node.nodes[index], _member_path(path, node, index), point, choose)


def choices_of(node: Node, value: object, path: str = "") -> dict[str, Choice] | None:
    """Return the choices that lead to `value`, `None` where it is outside of the space; grids are not chosen from.

    Args:
        node: the parsed space or a part of it.
        value: a configuration, as `draw` returns it or as a journal holds it.
        path: of `node` in the file.
    """
    if isinstance(node, Constant):
        return {} if _same(node.value, value) else None
    if isinstance(node, Interval):
        choice = _choice(node, value)
        return None if choice is None else {path: choice}
    if isinstance(node, Fields):
        if not isinstance(value, Mapping) or value.keys() != node.nodes.keys():
            return None
        found: dict[str, Choice] = {}
        for key, member in node.nodes.items():
            below = choices_of(member, value[key], join_path(path, key))
            if below is None:
                return None
            found |= below
        return found
    for index, member in enumerate(node.nodes):
        below = choices_of(member, value, _member_path(path, node, index))
        if below is not None:
            return below if node.kind == "grid" else {path: index, **below}
    return None


def _member_path(path: str, node: Members, index: int) -> str:
    return join_path(join_path(path, node.kind), index)


def _value(node: Interval, choice: Choice) -> Choice:
    if node.kind == "quniform":
        return node.on_step(int(choice))
    return type(node.low)(choice) if node.kind == "randint" else choice


def _choice(node: Interval, value: object) -> Choice | None:
    """Return the choice that leads to a number in the interval; `None` where none does."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not node.low <= value <= node.high:
        return None
    if node.kind == "randint":
        return int(value) if float(value).is_integer() else None
    if node.kind == "quniform":
        assert node.step is not None
        steps = round((value - node.low) / node.step)
        return steps if 0 <= steps <= node.steps and node.on_step(steps) == value else None
    return float(value)


def _same(constant: Plain, value: object) -> bool:
    """Return whether two plain values are one: `3` and `3.0` are, `1` and `true` are not."""
    if isinstance(constant, list) and isinstance(value, Sequence) and not isinstance(value, str):
        return len(constant) == len(value) and all(map(_same, constant, value))
    return isinstance(constant, bool) == isinstance(value, bool) and bool(constant == value)

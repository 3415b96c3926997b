"""The domains of a search space, parsed from a file's values; `sweeper.space.domains.choices` draws from them.

    choice: [a, b]            one of the members, equally likely
    grid: [a, b]              every member in turn
    one_of: [{…}, {…}]        one of the branches, each a mapping with domains of its own
    uniform: [low, high]      a real number, evenly
    loguniform: [low, high]   a real number, its logarithm evenly; 0 < low
    quniform: [low, high, step]   low, low + step, … high, each equally likely
    randint: [low, high]      a whole number, both ends included

A parsed space is a tree of `Constant`, `Fields` (a mapping), `Members` (choice, grid, one_of) and `Interval`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from sweeper.core.errors import Fault
from sweeper.core.key_paths import join_path

MEMBER_DOMAINS = ("choice", "grid", "one_of")
INTERVAL_DOMAINS = ("uniform", "loguniform", "quniform", "randint")
DOMAINS = (*MEMBER_DOMAINS, *INTERVAL_DOMAINS)


@dataclass(frozen=True)
class Constant:
    """One value, the same in every configuration: a scalar or a list of scalars."""

    value: Any


@dataclass(frozen=True)
class Fields:
    """A mapping; its keys exist together."""

    nodes: dict[str, Node]


@dataclass(frozen=True)
class Members:
    """`choice`, `grid` or `one_of` over parsed members."""

    kind: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Interval:
    """`uniform`, `loguniform`, `quniform` (with a step) or `randint` between two ends, both included.

    What is drawn has the type of `low`.
    """

    kind: str
    low: int | float
    high: int | float
    step: int | float | None = None

    @property
    def steps(self) -> int:
        """How many steps of `quniform` lie between its ends, in exact decimal arithmetic."""
        assert self.step is not None
        return int((Decimal(repr(self.high)) - Decimal(repr(self.low))) / Decimal(repr(self.step)))

    def on_step(self, k: int) -> int | float:
        """Return `low + k · step` of `quniform` without binary rounding dust: 0.1 + 2 · 0.1 is 0.3."""
        return type(self.low)(Decimal(repr(self.low)) + k * Decimal(repr(self.step)))


Node: TypeAlias = Constant | Fields | Members | Interval

INVALID = Constant(None)
"""Stands for a part of a space whose faults have been noted."""


def parse(value: Any, path: str, faults: list[Fault]) -> Node:
    """Parse one value of a search space; what breaks a rule is added to `faults` and stands as `INVALID`."""
    if isinstance(value, dict):
        named = [key for key in value if key in DOMAINS]
        if not named:
            return Fields({key: parse(member, join_path(path, key), faults) for key, member in value.items()})
        if len(value) > 1:
            others = ", ".join(key for key in value if key != named[0])
            rule = f"{named[0]} stands beside {others}: a domain is its mapping's only key"
            faults.append(Fault(path, rule, f"write {{{named[0]}: […]}} alone"))
            return INVALID
        kind = named[0]
        inner = join_path(path, kind)
        if kind in MEMBER_DOMAINS:
            return _members(kind, value[kind], inner, faults)
        return _interval(kind, value[kind], inner, faults)
    if isinstance(value, list):
        if any(isinstance(member, (dict, list)) for member in value):
            faults.append(Fault(path, "a list inside a space holds plain values only", "use choice, grid or one_of"))
            return INVALID
        return Constant(list(value))
    return Constant(value)


def plain(node: Node) -> Any:
    """Return the node as a file's values; `parse` gives the node again."""
    if isinstance(node, Constant):
        return list(node.value) if isinstance(node.value, list) else node.value
    if isinstance(node, Fields):
        return {key: plain(member) for key, member in node.nodes.items()}
    if isinstance(node, Members):
        return {node.kind: [plain(member) for member in node.nodes]}
    return {node.kind: [node.low, node.high] if node.step is None else [node.low, node.high, node.step]}


def _members(kind: str, value: Any, path: str, faults: list[Fault]) -> Node:
    if not isinstance(value, list) or not value:
        faults.append(Fault(path, f"{kind} needs a list of at least one member", f"write {kind}: [a, b]"))
        return INVALID
    nodes: list[Node] = []
    for index, member in enumerate(value):
        place = join_path(path, index)
        if kind == "one_of" and not isinstance(member, (dict, str)):
            faults.append(Fault(place, f"one_of chooses among mappings, not {member!r}", "use choice for plain values"))
            nodes.append(INVALID)
            continue
        nodes.append(parse(member, place, faults))
        if kind != "grid" and grid_size(nodes[-1]) != 1:
            faults.append(Fault(place, f"a grid inside {kind}", "use grid here instead: it takes each member in turn"))
    faults += [
        Fault(join_path(path, index), f"{member!r} stands twice", "remove one of the two")
        for index, member in enumerate(value)
        if kind == "grid" and member in value[:index]
    ]
    return Members(kind, tuple(nodes))


def _interval(kind: str, value: Any, path: str, faults: list[Fault]) -> Node:
    rule = _interval_fault(kind, value)
    if rule is not None:
        form = "[low, high, step]" if kind == "quniform" else "[low, high]"
        faults.append(Fault(path, rule, f"write {kind}: {form} with low < high"))
        return INVALID
    return Interval(kind, *value)


def _interval_fault(kind: str, value: Any) -> str | None:
    """Return the rule that an interval's ends break, or `None`."""
    length = 3 if kind == "quniform" else 2
    if not isinstance(value, list) or len(value) != length:
        return f"{kind} needs a list of {length} numbers"
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in value)
    if not numbers:
        return f"{kind} needs finite numbers, not {value!r}"
    low, high = value[0], value[1]
    if low >= high:
        return f"low = {low} must be below high = {high}"
    if kind == "loguniform" and low <= 0:
        return f"low = {low} must be above 0: a logarithm is taken"
    if kind == "randint" and not all(float(v).is_integer() for v in value):
        return f"randint needs whole numbers, not {value!r}"
    if not math.isfinite(high - low):
        return f"the interval from {low} to {high} is too wide for a float"
    if kind == "quniform":
        return _step_fault(*value)
    return None


def _step_fault(low: float, high: float, step: float) -> str | None:
    width, size = Decimal(repr(high)) - Decimal(repr(low)), Decimal(repr(step))
    if step <= 0:
        return f"step = {step} must be above 0"
    if width / size > 1_000_000:
        return f"step = {step} divides the interval into more than a million values; use uniform"
    if width % size != 0:
        return f"step = {step} does not lead from {low} to {high} in whole steps"
    return None


def grid_size(node: Node) -> int:
    """Return the number of grid points: grids multiply side by side and add over the members of one grid."""
    if isinstance(node, Fields):
        return math.prod(grid_size(member) for member in node.nodes.values())
    if isinstance(node, Members) and node.kind == "grid":
        return sum(grid_size(member) for member in node.nodes)
    return 1


def is_random(node: Node) -> bool:
    """Tell whether anything under `node` is drawn at random."""
    if isinstance(node, Fields):
        return any(is_random(member) for member in node.nodes.values())
    if isinstance(node, Members):
        return node.kind != "grid" or any(is_random(member) for member in node.nodes)
    return isinstance(node, Interval)


def extremes(node: Node) -> list[tuple[str, Any]]:
    """Return the values that decide whether a hyperparameter's domain is valid, each with its place below the node.

    A constant gives itself, an interval its two ends, choice and grid all members. Every rule in the registries is
    a range, so what holds at both ends holds between.
    """
    if isinstance(node, Constant):
        return [("", node.value)]
    if isinstance(node, Interval):
        return [(f".{node.kind}", node.low), (f".{node.kind}", node.high)]
    if isinstance(node, Members):
        found = []
        for index, member in enumerate(node.nodes):
            found += [(f".{node.kind}[{index}]{place}", value) for place, value in extremes(member)]
        return found
    return []

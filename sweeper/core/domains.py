"""The domains of a search space, parsed from a file's values, and the choices that turn them into a configuration.

    choice: [a, b]            one of the members, equally likely
    grid: [a, b]              every member in turn
    one_of: [{…}, {…}]        one of the branches, each a mapping with its own domains
    uniform: [low, high]      a real number, evenly
    loguniform: [low, high]   a real number, its logarithm evenly; 0 < low
    quniform: [low, high, step]   low, low + step, … high, each equally likely; real numbers
    randint: [low, high]      a whole number, both ends included

Only `choice`, `grid` and `randint` give integers; other intervals with whole ends do not. A hyperparameter of type
integer accepts `quniform` with whole steps, and refuses `uniform` and `loguniform`.

A parsed space is a tree of `Constant`, `Fields` (a mapping), `Members` (choice, grid, one_of) and `Interval`. A domain
is identified by its path in the file (`loss.one_of[1].gamma`), so hyperparameters of the same name in two branches stay
separate. A choice exists only if its branch was taken. Choices are plain values: a member's index in `choice` and
`one_of`, the number itself in an interval, the number of steps in `quniform`. `draw` turns choices into a
configuration, whether they are random or a searcher's.

The file's plain values (`Plain`, `Values`) and their paths (`join_path`) are defined here, too.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

from sweeper.core.errors import Fault

#: A value of a search space file; keys are text.
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

#: A mapping of a search space. Pydantic checks its structure, so the types of its values are not repeated here.
Values: TypeAlias = dict[str, Any]


def part_of(values: object, *keys: str) -> Any:
    """Return the value at `keys` in nested mappings; `None` where a key is missing or a level is not a mapping."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def listed(value: object) -> list[Plain]:
    """Return a list, or an empty one for any other value."""
    # Pydantic reports a value of the wrong type; the checks that use this need not do so again.
    return value if isinstance(value, list) else []


def mappings(value: object) -> list[Values]:
    """Return the mappings in a list; an empty list for any other value."""
    return [item for item in listed(value) if isinstance(item, dict)]


def join_path(path: str, key: str | int) -> str:
    """Return the path of `key` (an integer is a list index) inside `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


MEMBER_DOMAINS = ("choice", "grid", "one_of")
INTERVAL_DOMAINS = ("uniform", "loguniform", "quniform", "randint")
DOMAINS = (*MEMBER_DOMAINS, *INTERVAL_DOMAINS)


@dataclass(frozen=True)
class Constant:
    """One value, the same in every configuration: a scalar or a list of scalars."""

    value: Plain


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

    Its ends, its step and every draw have one type: int for `randint`, else float, or the hyperparameter's own type.
    """

    kind: str
    low: int | float
    high: int | float
    step: int | float | None = None

    @property
    def steps(self) -> int:
        """Number of steps between the ends (of size 1 for `randint`), in exact decimal arithmetic."""
        return int((Decimal(repr(self.high)) - Decimal(repr(self.low))) / Decimal(repr(self.step or 1)))

    def on_step(self, k: int) -> int | float:
        """Return `low + k · step` (`randint`: `low + k`) without binary rounding: 0.1 + 2 · 0.1 is 0.3."""
        return type(self.low)(Decimal(repr(self.low)) + k * Decimal(repr(self.step or 1)))


Node: TypeAlias = Constant | Fields | Members | Interval

#: Placeholder for a part of a space whose faults have been recorded.
INVALID = Constant(None)


def refused(faults: list[Fault], path: str, rule: str, remedy: str) -> Constant:
    """Record a fault and return the placeholder for the invalid part of the space."""
    faults.append(Fault(path, rule, remedy))
    return INVALID


def parse(value: Plain, path: str, faults: list[Fault]) -> Node:
    """Parse one value of a search space; add broken rules to `faults`, and replace invalid parts by `INVALID`.

    Example:
        >>> faults = []
        >>> parse({"uniform": [0, 1]}, "space.loss.gamma", faults)
        Interval(kind='uniform', low=0.0, high=1.0, step=None)
        >>> parse({"uniform": [1, 0]}, "space.loss.gamma", faults) is INVALID, str(faults[0]).splitlines()[0]
        (True, 'space.loss.gamma.uniform: low = 1 must be below high = 0')
    """
    if isinstance(value, dict):
        named = [key for key in value if key in DOMAINS]
        if not named:
            return Fields({key: parse(member, join_path(path, key), faults) for key, member in value.items()})
        if len(value) > 1:
            others = ", ".join(key for key in value if key != named[0])
            rule = f"{named[0]} stands next to {others}: a domain must be the only key of its mapping"
            return refused(faults, path, rule, f"write {{{named[0]}: […]}} alone")
        kind = named[0]
        inner = join_path(path, kind)
        if kind in MEMBER_DOMAINS:
            return _members(kind, value[kind], inner, faults)
        return _interval(kind, value[kind], inner, faults)
    if isinstance(value, list):
        if any(isinstance(member, (dict, list)) for member in value):
            rule = "a list inside a space holds plain values only"
            return refused(faults, path, rule, "use choice, grid or one_of")
        return Constant(list(value))
    return Constant(value)


def plain(node: Node) -> Plain:
    """Return the node as a file's values, the inverse of `parse`."""
    if isinstance(node, Constant):
        return list(node.value) if isinstance(node.value, list) else node.value
    if isinstance(node, Fields):
        return {key: plain(member) for key, member in node.nodes.items()}
    if isinstance(node, Members):
        return {node.kind: [plain(member) for member in node.nodes]}
    return {node.kind: [node.low, node.high] if node.step is None else [node.low, node.high, node.step]}


def _members(kind: str, value: Plain, path: str, faults: list[Fault]) -> Node:
    if not isinstance(value, list) or not value:
        return refused(faults, path, f"{kind} needs a list of at least one member", f"write {kind}: [a, b]")
    nodes: list[Node] = []
    for index, member in enumerate(value):
        place = join_path(path, index)
        if kind == "one_of" and not isinstance(member, (dict, str)):
            rule = f"one_of chooses among mappings, not {member!r}"
            nodes.append(refused(faults, place, rule, "use choice for plain values"))
            continue
        nodes.append(parse(member, place, faults))
        if kind != "grid" and grid_size(nodes[-1]) != 1:
            # Every grid point must get a configuration, but a branch is not certain to be drawn.
            faults.append(Fault(place, f"a grid inside {kind}", "use grid here instead: it tries every member"))
    if kind == "grid":
        faults += repeats(value, path)
    return Members(kind, tuple(nodes))


def repeats(
    members: Sequence[Plain], path: str, rule: str = "{!r} appears twice", remedy: str = "remove one of the two"
) -> list[Fault]:
    """Return a fault for each member of the list at `path` that repeats an earlier one; `rule` names the member."""
    places = [index for index, member in enumerate(members) if member in members[:index]]
    return [Fault(join_path(path, index), rule.format(members[index]), remedy) for index in places]


def resolved_faults(node: Node, path: str) -> list[Fault]:
    """Return the faults that appear only once defaults are filled in and numbers have their type.

    Two members of a grid, or the two ends of an interval, may have become equal.
    """
    if isinstance(node, Fields):
        return [f for key, member in node.nodes.items() for f in resolved_faults(member, join_path(path, key))]
    if isinstance(node, Members):
        inner = join_path(path, node.kind)
        below = [f for i, member in enumerate(node.nodes) for f in resolved_faults(member, join_path(inner, i))]
        return below + (repeats([plain(member) for member in node.nodes], inner) if node.kind == "grid" else [])
    if isinstance(node, Interval):
        ends = (node.low, node.high) if node.step is None else (node.low, node.high, node.step)
        rule = _ends_fault(node.kind, ends)
        return [] if rule is None else [_interval_fault(node.kind, join_path(path, node.kind), rule)]
    return []


def _interval(kind: str, value: Plain, path: str, faults: list[Fault]) -> Node:
    length = 3 if kind == "quniform" else 2
    ends = [v for v in value if _is_finite(v)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(value) != length:
        rule: str | None = f"{kind} needs a list of {length} numbers"
    elif len(ends) != length:
        rule = f"{kind} needs finite numbers, not {value!r}"
    else:
        rule = _ends_fault(kind, ends)
    typed = [(int if kind == "randint" else float)(end) for end in ends] if rule is None else []
    rule = rule or _ends_fault(kind, typed)  # integers beyond 2⁵³ may become equal as floats
    if rule is not None:
        faults.append(_interval_fault(kind, path, rule))
        return INVALID
    return Interval(kind, *typed)


def _is_finite(value: Plain) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _interval_fault(kind: str, path: str, rule: str) -> Fault:
    form = "[low, high, step]" if kind == "quniform" else "[low, high]"
    return Fault(path, rule, f"write {kind}: {form} with low < high")


def _ends_fault(kind: str, value: Sequence[int | float]) -> str | None:
    """Return the rule that an interval's ends and step break, or `None`."""
    low, high = value[0], value[1]
    if low >= high:
        return f"low = {low} must be below high = {high}"
    if kind == "loguniform" and low <= 0:
        return f"low = {low} must be above 0: loguniform takes its logarithm"
    if kind == "randint" and not all(float(v).is_integer() for v in value):
        return f"randint needs whole numbers, not {[*value]!r}"
    if not math.isfinite(high - low):  # each end is finite, but `uniform` computes their difference
        return f"the interval from {low} to {high} is too wide for a float"
    if kind == "quniform":
        return _step_fault(*value)
    return None


def _step_fault(low: float, high: float, step: float) -> str | None:
    # In decimal, because 0.3 % 0.1 is not 0 in binary.
    width, size = Decimal(repr(high)) - Decimal(repr(low)), Decimal(repr(step))
    if step <= 0:
        return f"step = {step} must be above 0"
    if width / size > 1_000_000:
        return f"step = {step} divides the interval into more than a million values; use uniform"
    if width % size != 0:
        return f"step = {step} does not divide the interval from {low} to {high} evenly"
    return None


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield the node at `path` and all nodes below it, with their paths."""
    yield path, node
    if isinstance(node, Fields):
        for key, member in node.nodes.items():
            yield from walk(member, join_path(path, key))
    elif isinstance(node, Members):
        for index, member in enumerate(node.nodes):
            yield from walk(member, _member_path(path, node, index))


def grid_size(node: Node) -> int:
    """Return the number of grid points: the product over sibling grids, the sum over the members of one grid."""
    if isinstance(node, Fields):
        return math.prod(grid_size(member) for member in node.nodes.values())
    if isinstance(node, Members) and node.kind == "grid":
        return sum(grid_size(member) for member in node.nodes)
    return 1


def random_sizes(node: Node) -> tuple[float, float]:
    """Return the smallest and largest number of distinct random configurations per grid point; may be infinite."""
    if isinstance(node, Interval):
        size = node.steps + 1 if node.kind in ("randint", "quniform") else math.inf
        return size, size
    if isinstance(node, Fields):
        pairs = [random_sizes(member) for member in node.nodes.values()]
        return math.prod(fewest for fewest, _ in pairs), math.prod(most for _, most in pairs)
    if isinstance(node, Members):
        pairs = [random_sizes(member) for member in node.nodes]
        if node.kind == "grid":
            return min(fewest for fewest, _ in pairs), max(most for _, most in pairs)
        return sum(fewest for fewest, _ in pairs), sum(most for _, most in pairs)
    return 1, 1


def at_grid_point(node: Node, point: int) -> Node:
    """Return the node with one member of each grid, chosen by the number `point` of a grid point."""
    if isinstance(node, Fields):
        nodes: dict[str, Node] = {}
        for key, member in node.nodes.items():
            point, own = divmod(point, grid_size(member))
            nodes[key] = at_grid_point(member, own)
        return Fields(nodes)
    if isinstance(node, Members) and node.kind == "grid":
        index, point = _grid_member(node, point)
        return at_grid_point(node.nodes[index], point)
    return node


def every_value(node: Node) -> Iterator[Plain]:
    """Yield every value of a finite node without grids, as `draw` returns them; overlapping members repeat values."""
    if isinstance(node, Interval):
        yield from map(node.on_step, range(node.steps + 1))
    elif isinstance(node, Members):
        yield from itertools.chain.from_iterable(map(every_value, node.nodes))
    elif isinstance(node, Fields) and node.nodes:
        # `itertools.product` would hold every value of every member in memory.
        (key, first), *rest = node.nodes.items()
        for value in every_value(first):
            yield from ({key: value, **cast(dict[str, Plain], others)} for others in every_value(Fields(dict(rest))))
    else:
        yield plain(node)


def is_random(node: Node) -> bool:
    """Return whether anything under `node` is drawn at random."""
    return any(isinstance(part, Members | Interval) and part.kind != "grid" for _, part in walk(node))


def extremes(node: Node) -> list[tuple[str, Plain]]:
    """Return the values that decide whether a hyperparameter's domain is valid, with their paths below the node.

    These are a constant, the two ends of an interval, all members of choice and grid. Every rule in the registries is a
    range, so a rule that holds at both ends holds in between.
    """
    if isinstance(node, Constant):
        return [("", node.value)]
    if isinstance(node, Interval):
        return [(f".{node.kind}", node.low), (f".{node.kind}", node.high)]
    if isinstance(node, Members):
        members = enumerate(node.nodes)
        return [(f".{node.kind}[{index}]{sub}", value) for index, member in members for sub, value in extremes(member)]
    return []


Choice = int | float

#: A component for each part: `{"loss": {"name": "focal", "gamma": 3.0}, "architecture": …, "optimizer": …}`.
Configuration = dict[str, dict[str, Plain]]


class Chooser(Protocol):
    """A source of choices; each choice is requested once."""

    def member(self, path: str, members: Members) -> int:
        """Return the index of one member of the `choice` or `one_of` at `path`."""

    def number(self, path: str, interval: Interval) -> Choice:
        """Return a number within the interval at `path`; for `quniform`, the number of steps above its low end."""


@dataclass(frozen=True)
class Uniforms:
    """Chooses at random, from one uniform number in [0, 1) for each path."""

    at: Callable[[str], float]

    def member(self, path: str, members: Members) -> int:
        """Return a member's index; all are equally likely."""
        return int(self.at(path) * len(members.nodes))

    def number(self, path: str, interval: Interval) -> Choice:
        """Return a number, distributed as the interval's kind says."""
        u, low, high = self.at(path), interval.low, interval.high
        if interval.kind == "uniform":
            return min(low + u * (high - low), float(high))  # the sum may round above the high end
        if interval.kind == "loguniform":
            value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
            return min(max(value, float(low)), float(high))  # exp(log(low)) may round below the low end
        if interval.kind == "randint":
            return int(low) + int(u * (int(high) - int(low) + 1))
        return int(u * (interval.steps + 1))


def draw_configuration(space: Fields, point: int, choose: Chooser) -> Configuration:
    """Return one configuration of a checked space; see `draw`.

    Its parts are components. The hyperparameters of a user's training loop stand next to them as plain values.
    """
    drawn = draw(space, "", point, choose)
    assert isinstance(drawn, dict)
    return cast(Configuration, drawn)


def draw(node: Node, path: str, point: int, choose: Chooser) -> Plain:
    """Return one value of `node` at a grid point.

    Args:
        node: the parsed space or a part of it.
        path: path of `node` in the file; empty for the space itself.
        point: number of the grid point below `node`, from 0.
        choose: source of all other choices, called in the order of the file.

    Example:
        >>> space = parse({"gamma": {"uniform": [0, 4]}, "seed": {"grid": [7, 8]}}, "", [])
        >>> draw(space, "", 1, Uniforms(lambda path: 0.5))
        {'gamma': 2.0, 'seed': 8}
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
        index, point = _grid_member(node, point)
    else:
        index = choose.member(path, node)
    return draw(node.nodes[index], _member_path(path, node, index), point, choose)


def _grid_member(node: Members, point: int) -> tuple[int, int]:
    """Return the member of a grid that contains grid point `point`, and the point's number within that member."""
    index = 0
    while point >= grid_size(node.nodes[index]):
        point -= grid_size(node.nodes[index])
        index += 1
    return index, point


def _member_path(path: str, node: Members, index: int) -> str:
    return join_path(join_path(path, node.kind), index)


def _value(node: Interval, choice: Choice) -> Choice:
    if node.kind == "quniform":
        return node.on_step(int(choice))
    return type(node.low)(choice) if node.kind == "randint" else choice

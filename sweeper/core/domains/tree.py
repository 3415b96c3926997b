"""The tree that a space is parsed into, what is known of its size, and the configurations that are drawn from it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast

from sweeper.core.domains.base import DOMAINS, INVALID, Choice, Constant, Fields, Interval, Members, Node
from sweeper.core.domains.values import Plain, join_path
from sweeper.core.errors import Fault
from trainables.registry import Configuration


def refused(faults: list[Fault], path: str, rule: str, remedy: str) -> Constant:
    """Record a fault and return the placeholder for the invalid part of the space."""
    faults.append(Fault(path, rule, remedy))
    return INVALID


def parse(value: Plain, path: str, faults: list[Fault]) -> Node:
    """Parse one value of a search space; add broken rules to `faults`, and replace invalid parts by `INVALID`.

    Example:
        >>> faults = []
        >>> parse({"uniform": [0, 1]}, "space.loss.gamma", faults)
        Uniform(low=0.0, high=1.0)
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
        domain = DOMAINS[named[0]]
        inner = join_path(path, domain.kind)
        if issubclass(domain, Members):
            return _members(domain, value[domain.kind], inner, faults)
        interval = domain.parsed(value[domain.kind])
        return _interval_refused(domain, inner, interval, faults) if isinstance(interval, str) else interval
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
    return {node.kind: [*node.numbers]}


def _members(domain: type[Members], value: Plain, path: str, faults: list[Fault]) -> Node:
    kind = domain.kind
    if not isinstance(value, list) or not value:
        return refused(faults, path, f"{kind} needs a list of at least one member", f"write {kind}: [a, b]")
    nodes: list[Node] = []
    for index, member in enumerate(value):
        place = join_path(path, index)
        if (fault := domain.member_fault(member)) is not None:
            nodes.append(refused(faults, place, *fault))
            continue
        nodes.append(parse(member, place, faults))
        if not domain.in_turn and grid_size(nodes[-1]) != 1:
            # Every grid point must get a configuration, but a branch is not certain to be drawn.
            faults.append(Fault(place, f"a grid inside {kind}", "use grid here instead: it tries every member"))
    faults += domain.list_faults(value, path)
    return domain(tuple(nodes))


def _interval_refused(domain: type[Interval], path: str, rule: str, faults: list[Fault]) -> Constant:
    return refused(faults, path, rule, f"write {domain.kind}: {domain.form} with low < high")


def resolved_faults(node: Node, path: str) -> list[Fault]:
    """Return the faults that appear only once defaults are filled in and numbers have their type.

    Two members of a grid, or the two ends of an interval, may have become equal.
    """
    if isinstance(node, Fields):
        return [f for key, member in node.nodes.items() for f in resolved_faults(member, join_path(path, key))]
    if isinstance(node, Members):
        inner = join_path(path, node.kind)
        below = [f for i, member in enumerate(node.nodes) for f in resolved_faults(member, join_path(inner, i))]
        return below + node.list_faults([plain(member) for member in node.nodes], inner)
    faults: list[Fault] = []
    if isinstance(node, Interval) and node.fault is not None:
        _interval_refused(type(node), join_path(path, node.kind), node.fault, faults)
    return faults


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
    if isinstance(node, Members) and node.in_turn:
        return sum(grid_size(member) for member in node.nodes)
    return 1


def random_sizes(node: Node) -> tuple[float, float]:
    """Return the smallest and largest number of distinct random configurations per grid point; may be infinite."""
    if isinstance(node, Interval):
        return node.size, node.size
    if isinstance(node, Fields):
        pairs = [random_sizes(member) for member in node.nodes.values()]
        return math.prod(fewest for fewest, _ in pairs), math.prod(most for _, most in pairs)
    if isinstance(node, Members):
        pairs = [random_sizes(member) for member in node.nodes]
        if node.in_turn:
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
    if isinstance(node, Members) and node.in_turn:
        index, point = _grid_member(node, point)
        return at_grid_point(node.nodes[index], point)
    return node


def every_value(node: Node) -> Iterator[Plain]:
    """Yield every value of a finite node without grids, as `draw` returns them; overlapping members repeat values."""
    if isinstance(node, Interval):
        yield from node.every()
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
    parts = (part for _, part in walk(node))
    return any(isinstance(part, Interval) or (isinstance(part, Members) and not part.in_turn) for part in parts)


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


class Chooser(Protocol):
    """A source of choices; each choice is requested once."""

    def member(self, path: str, members: Members) -> int:
        """Return the index of one member of the `choice` or `one_of` at `path`."""

    def number(self, path: str, interval: Interval) -> Choice:
        """Return the choice of the interval at `path`."""


@dataclass(frozen=True)
class Uniforms:
    """Chooses at random, from one uniform number in [0, 1) for each path."""

    at: Callable[[str], float]

    def member(self, path: str, members: Members) -> int:
        """Return a member's index; all are equally likely."""
        return int(self.at(path) * len(members.nodes))

    def number(self, path: str, interval: Interval) -> Choice:
        """Return a choice, distributed as the interval says."""
        return interval.choice(self.at(path))


def draw_configuration(space: Fields, point: int, choose: Chooser) -> Configuration:
    """Return one configuration of a checked space; see `draw`.

    Its parts are components. The hyperparameters of a user's training loop stand next to them as plain values.
    """
    drawn = draw(space, "", point, choose)
    assert isinstance(drawn, dict)
    return Configuration(drawn)


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
        return node.number(choose.number(path, node))
    if isinstance(node, Fields):
        values: dict[str, Plain] = {}
        for key, member in node.nodes.items():
            point, own = divmod(point, grid_size(member)) if point else (0, 0)  # most spaces have one grid point
            values[key] = draw(member, join_path(path, key), own, choose)
        return values
    if node.in_turn:
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

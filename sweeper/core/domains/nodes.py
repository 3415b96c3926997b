"""The nodes of a parsed search space: a constant, a mapping, and a list to choose from; intervals are in `base`.

Every node knows its size, its ends and its values, and draws one of them. None of them names a kind of domain.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from sweeper.core.domains.values import Plain, join_path
from sweeper.core.errors import Fault

if TYPE_CHECKING:
    from sweeper.core.domains.base import Interval

#: A plain value from which a domain's value follows: a member's index, or what an interval's `number` takes.
Choice: TypeAlias = int | float


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


class Node(ABC):
    """A part of a parsed space."""

    @property
    def points(self) -> int:
        """Number of grid points: the product over sibling grids, the sum over the members of one grid."""
        return 1

    @property
    def sizes(self) -> tuple[float, float]:
        """Smallest and largest number of distinct random configurations per grid point; can be infinite."""
        return 1, 1

    @property
    def is_random(self) -> bool:
        """Whether anything in the node is drawn at random."""
        return False

    @abstractmethod
    def plain(self) -> Plain:
        """Return the node as a file's values."""

    @abstractmethod
    def draw(self, path: str, point: int, choose: Chooser) -> Plain:
        """Return one value.

        Args:
            path: path of the node in the file; empty for the space itself.
            point: number of the grid point below the node, from 0.
            choose: source of all other choices, called in the order of the file.
        """

    def every_value(self) -> Iterator[Plain]:
        """Yield every value of a finite node without grids, as `draw` returns them; overlapping members repeat them."""
        yield self.plain()

    def at_point(self, point: int) -> Node:
        """Return the node with one member of each grid, chosen by the number of a grid point."""
        return self

    def extremes(self) -> list[tuple[str, Plain]]:
        """Return the values that decide whether a hyperparameter's domain is valid, with their paths below the node.

        These are a constant, the two ends of an interval, all members of a list. Every rule in the registries is a
        range, so a rule that holds at both ends holds in between.
        """
        return []

    def walk(self, path: str = "") -> Iterator[tuple[str, Node]]:
        """Yield the node at `path` and all nodes below it, with their paths."""
        yield path, self


@dataclass(frozen=True)
class Constant(Node):
    """One value, the same in every configuration: a scalar or a list of scalars."""

    value: Plain

    def plain(self) -> Plain:
        """Return the value."""
        return list(self.value) if isinstance(self.value, list) else self.value

    def draw(self, path: str, point: int, choose: Chooser) -> Plain:
        """Return the value."""
        return self.plain()

    def extremes(self) -> list[tuple[str, Plain]]:
        """Return the value."""
        return [("", self.value)]


#: Placeholder for a part of a space whose faults have been recorded.
INVALID = Constant(None)


def refused(faults: list[Fault], path: str, rule: str, remedy: str) -> Constant:
    """Record a fault and return the placeholder for the invalid part of the space."""
    faults.append(Fault(path, rule, remedy))
    return INVALID


@dataclass(frozen=True)
class Fields(Node):
    """A mapping; its keys exist together."""

    nodes: Mapping[str, Node]

    @cached_property
    def points(self) -> int:
        """The product over the keys."""
        # Computed once, because every draw asks for it.
        return math.prod(node.points for node in self.nodes.values())

    @property
    def sizes(self) -> tuple[float, float]:
        """The products over the keys."""
        fewest, most = zip((1, 1), *(node.sizes for node in self.nodes.values()), strict=True)
        return math.prod(fewest), math.prod(most)

    @property
    def is_random(self) -> bool:
        """Whether anything below a key is drawn at random."""
        return any(node.is_random for node in self.nodes.values())

    def plain(self) -> dict[str, Plain]:
        """Return the values by key."""
        return {key: node.plain() for key, node in self.nodes.items()}

    def draw(self, path: str, point: int, choose: Chooser) -> dict[str, Plain]:
        """Return a value of each key."""
        values: dict[str, Plain] = {}
        for key, node in self.nodes.items():
            point, own = divmod(point, node.points) if point else (0, 0)  # most spaces have one grid point
            values[key] = node.draw(join_path(path, key), own, choose)
        return values

    def every_value(self) -> Iterator[dict[str, Plain]]:
        """Yield every combination of the keys' values."""
        if not self.nodes:
            yield {}
            return
        # `itertools.product` would hold every value of every member in memory.
        (key, first), *rest = self.nodes.items()
        for value in first.every_value():
            yield from ({key: value, **others} for others in Fields(dict(rest)).every_value())

    def at_point(self, point: int) -> Fields:
        """Return the mapping with one member of each grid."""
        nodes: dict[str, Node] = {}
        for key, node in self.nodes.items():
            point, own = divmod(point, node.points)
            nodes[key] = node.at_point(own)
        return Fields(nodes)

    def walk(self, path: str = "") -> Iterator[tuple[str, Node]]:
        """Yield the mapping and all nodes below it."""
        yield path, self
        for key, node in self.nodes.items():
            yield from node.walk(join_path(path, key))


@dataclass(frozen=True)
class Members(Node):
    """A list of parsed members, of which a configuration has one.

    Attributes:
        kind: its key in the file.
        in_turn: whether every member gets a configuration, instead of being drawn.
    """

    nodes: tuple[Node, ...]
    kind: ClassVar[str]
    in_turn: ClassVar[bool] = False

    @classmethod
    def member_fault(cls, member: Plain) -> tuple[str, str] | None:
        """Return the rule that a member breaks, and its remedy, before the member is parsed; `None` if it is sound."""

    @classmethod
    def list_faults(cls, members: Sequence[Plain], path: str) -> list[Fault]:
        """Return the faults of the whole list at `path`."""
        return []

    @cached_property
    def points(self) -> int:
        """The sum over the members of a list that is taken in turn, else 1."""
        return sum(node.points for node in self.nodes) if self.in_turn else 1

    @property
    def sizes(self) -> tuple[float, float]:
        """The sums over the members; of a list that is taken in turn, the smallest and the largest."""
        fewest, most = zip(*(node.sizes for node in self.nodes), strict=True)
        return (min(fewest), max(most)) if self.in_turn else (sum(fewest), sum(most))

    @property
    def is_random(self) -> bool:
        """Whether a member is drawn, instead of being taken in turn, or anything in a member is."""
        return not self.in_turn or any(node.is_random for node in self.nodes)

    def plain(self) -> Plain:
        """Return the members' values below the kind."""
        return {self.kind: [node.plain() for node in self.nodes]}

    def draw(self, path: str, point: int, choose: Chooser) -> Plain:
        """Return a value of one member."""
        index, point = self._at(point) if self.in_turn else (choose.member(path, self), point)
        return self.nodes[index].draw(self.member_path(path, index), point, choose)

    def every_value(self) -> Iterator[Plain]:
        """Yield every value of every member."""
        return itertools.chain.from_iterable(node.every_value() for node in self.nodes)

    def at_point(self, point: int) -> Node:
        """Return the member that contains a grid point; a list that is drawn stays as it is."""
        if not self.in_turn:
            return self
        index, point = self._at(point)
        return self.nodes[index].at_point(point)

    def extremes(self) -> list[tuple[str, Plain]]:
        """Return the extremes of every member."""
        members = enumerate(self.nodes)
        return [(f".{self.kind}[{index}]{place}", value) for index, node in members for place, value in node.extremes()]

    def walk(self, path: str = "") -> Iterator[tuple[str, Node]]:
        """Yield the list and all nodes below it."""
        yield path, self
        for index, node in enumerate(self.nodes):
            yield from node.walk(self.member_path(path, index))

    def member_path(self, path: str, index: int) -> str:
        """Return the path of a member of the list at `path`."""
        return join_path(join_path(path, self.kind), index)

    def _at(self, point: int) -> tuple[int, int]:
        """Return the member that contains a grid point, and the point's number within that member."""
        index = 0
        while point >= self.nodes[index].points:
            point -= self.nodes[index].points
            index += 1
        return index, point

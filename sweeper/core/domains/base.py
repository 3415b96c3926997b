"""The bases of the domains, each of which is a file of this folder, and how values and domains are parsed.

A domain declares here all that other parts of the program ask of one. None of them names a kind.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import ClassVar, Protocol, Self, TypeAlias, TypeGuard, TypeVar

from sweeper.core.domains.nodes import Choice, Chooser, Constant, Fields, Members, Node, refused
from sweeper.core.domains.values import Plain, join_path
from sweeper.core.errors import Fault

Number: TypeAlias = int | float

#: Every kind of domain by its key in the file.
DOMAINS: dict[str, type[Members] | type[Interval]] = {}

AnyDomain = TypeVar("AnyDomain", bound="type[Members] | type[Interval]")


def domain(kind: str) -> Callable[[AnyDomain], AnyDomain]:
    """Add a class to `DOMAINS` under its key in the file.

    Raises TypeError if the key is taken, or if an interval leaves out what draws, lines or Optuna ask of it.
    """

    def add(cls: AnyDomain) -> AnyDomain:
        # Inherited from another interval, either would describe that one's numbers.
        missing = [name for name in ("choice", "suggested") if issubclass(cls, Interval) and name not in vars(cls)]
        missing += ["logarithmic"] if issubclass(cls, Interval) and not hasattr(cls, "logarithmic") else []
        if kind in DOMAINS or missing:
            raise TypeError(f"the domain {kind} {f'lacks {missing}' if missing else 'is there already'}")
        cls.kind = kind
        DOMAINS[kind] = cls
        return cls

    return add


class Suggesting(Protocol):
    """The part of an Optuna trial that domains use."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """Suggest a real number."""

    def suggest_int(self, name: str, low: int, high: int) -> int:
        """Suggest a whole number."""


@dataclass(frozen=True)
class Interval(Node):
    """Numbers between two ends, both included.

    Its numbers and every draw have one type: int for whole numbers, else float, or the hyperparameter's own type.

    Attributes:
        low, high: the ends as written.
        kind: its key in the file.
        form: how it is written, for remedies; so many numbers as names.
        logarithmic: whether distances in it are measured between logarithms.
        written_as: the type of its numbers in the file.
    """

    low: Number
    high: Number
    kind: ClassVar[str]
    form: ClassVar[str] = "[low, high]"
    logarithmic: ClassVar[bool]
    written_as: ClassVar[type[int] | type[float]] = float

    @classmethod
    def refused(cls, path: str, rule: str, faults: list[Fault]) -> Constant:
        """Record the rule that the interval at `path` breaks; return the placeholder."""
        return refused(faults, join_path(path, cls.kind), rule, f"write {cls.kind}: {cls.form} with low < high")

    @classmethod
    def parsed(cls, value: Plain) -> Self | str:
        """Return the interval that a file's value describes, or the rule that the value breaks."""
        length = cls.form.count(",") + 1
        if not isinstance(value, list) or len(value) != length:
            return f"{cls.kind} needs a list of {length} numbers"
        numbers = [number for number in value if _is_finite(number)]
        if len(numbers) != length:
            return f"{cls.kind} needs finite numbers, not {value!r}"
        fault = cls(*numbers).fault
        typed = cls(*map(cls.written_as, numbers)) if fault is None else None
        if typed is None or typed.fault is not None:  # integers beyond 2⁵³ may become equal as floats
            return fault or str(typed and typed.fault)
        ends = [typed.number(typed.choice(u)) for u in (0.0, math.nextafter(1.0, 0.0))]
        if not typed.low <= min(ends) <= max(ends) <= typed.high:
            raise TypeError(f"{cls.kind} draws {ends} outside its ends: its number does not follow from its choice")
        return typed

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The numbers as a file has them, in the order of `form`."""
        return self.low, self.high

    @property
    def fault(self) -> str | None:
        """The rule that its numbers break, or `None`."""
        if self.low >= self.high:
            return f"low = {self.low} must be below high = {self.high}"
        if not math.isfinite(self.high - self.low):  # each end is finite, but `uniform` computes their difference
            return f"the interval from {self.low} to {self.high} is too wide for a float"
        return None

    @property
    def size(self) -> float:
        """How many values it has; infinite for real numbers."""
        return math.inf

    @property
    def whole(self) -> bool:
        """Whether it draws whole numbers only."""
        return False

    @property
    def sizes(self) -> tuple[float, float]:
        """How many values it has."""
        return self.size, self.size

    @property
    def is_random(self) -> bool:
        """True: its number is drawn."""
        return True

    def plain(self) -> Plain:
        """Return the numbers below the kind."""
        return {self.kind: [*self.numbers]}

    def draw(self, path: str, point: int, choose: Chooser) -> Plain:
        """Return one number."""
        return self.number(choose.number(path, self))

    def extremes(self) -> list[tuple[str, Plain]]:
        """Return the two ends."""
        return [(f".{self.kind}", self.low), (f".{self.kind}", self.high)]

    def every_value(self) -> Iterator[Plain]:
        """Yield every value of a finite interval, in order."""
        raise ValueError(f"{self.kind} has no list of values")

    def typed(self, number: type[int] | type[float]) -> Self:
        """Return the interval with numbers of this type."""
        return replace(self, low=number(self.low), high=number(self.high))

    @abstractmethod
    def choice(self, u: float) -> Choice:
        """Return the choice at the quantile `u` of [0, 1)."""

    @abstractmethod
    def suggested(self, trial: Suggesting, path: str) -> Choice:
        """Return the choice that an Optuna trial suggests for the interval at `path`."""

    def number(self, choice: Choice) -> Number:
        """Return the value that follows from a choice."""
        return choice


@dataclass(frozen=True)
class Stepped(Interval):
    """Numbers at equal steps from the low end to the high end, each equally likely."""

    logarithmic: ClassVar[bool] = False

    @property
    def size(self) -> float:
        """How many values it has."""
        return self.steps + 1

    @property
    def steps(self) -> int:
        """Number of steps between the ends, in exact decimal arithmetic."""
        return int((Decimal(repr(self.high)) - Decimal(repr(self.low))) / self._step)

    @property
    def _step(self) -> Decimal:
        return Decimal(1)

    def on_step(self, k: int) -> Number:
        """Return `low + k · step` without binary rounding: 0.1 + 2 · 0.1 is 0.3."""
        return type(self.low)(Decimal(repr(self.low)) + k * self._step)

    def every_value(self) -> Iterator[Plain]:
        """Yield every value, in order."""
        return map(self.on_step, range(self.steps + 1))


#: Turns a value that is no domain into a node; appends each broken rule to the faults.
Reader: TypeAlias = Callable[[Plain, str, list[Fault]], Node]

#: Checks an interval and returns it with numbers of their type.
Typed: TypeAlias = Callable[[Interval, str, list[Fault]], Node]


def parse(value: Plain, path: str, faults: list[Fault], read: Reader | None = None, typed: Typed | None = None) -> Node:
    """Parse one value of a search space; add broken rules to `faults`, and replace invalid parts by `INVALID`.

    Args:
        value: the value as the file has it.
        path: its path in the file.
        faults: list to which each broken rule is appended.
        read: reads the value if it is no domain, and every member of a list; by default as plain values.
        typed: checks an interval, and gives its numbers their type.

    Example:
        >>> faults = []
        >>> parse({"uniform": [0, 1]}, "space.loss.gamma", faults)
        Uniform(low=0.0, high=1.0)
        >>> invalid = parse({"uniform": [1, 0]}, "space.loss.gamma", faults)
        >>> str(faults[0]).splitlines()[0]
        'space.loss.gamma.uniform: low = 1 must be below high = 0'
    """
    kinds = [key for key in value if key in DOMAINS] if isinstance(value, dict) else []
    if not isinstance(value, dict) or not kinds:
        return (read or plain_node)(value, path, faults)
    if len(value) > 1:
        others = ", ".join(key for key in value if key != kinds[0])
        rule = f"{kinds[0]} stands next to {others}: a domain must be the only key of its mapping"
        return refused(faults, path, rule, f"write {{{kinds[0]}: […]}} alone")
    domain = DOMAINS[kinds[0]]
    if issubclass(domain, Members):
        read_member = partial(parse, read=read, typed=typed)
        return _members(domain, value[domain.kind], join_path(path, domain.kind), faults, read_member)
    interval = domain.parsed(value[domain.kind])
    if isinstance(interval, str):
        return domain.refused(path, interval, faults)
    return interval if typed is None else typed(interval, path, faults)


def plain_node(value: Plain, path: str, faults: list[Fault]) -> Node:
    """Parse a value that is no domain: a mapping, a scalar, or a list of scalars."""
    if isinstance(value, dict):
        return Fields({key: parse(member, join_path(path, key), faults) for key, member in value.items()})
    if isinstance(value, list) and any(isinstance(member, (dict, list)) for member in value):
        return refused(faults, path, "a list inside a space holds plain values only", "use choice, grid or one_of")
    return Constant(list(value) if isinstance(value, list) else value)


def _members(domain: type[Members], value: Plain, path: str, faults: list[Fault], read: Reader) -> Node:
    kind = domain.kind
    if not isinstance(value, list) or not value:
        return refused(faults, path, f"{kind} needs a list of at least one member", f"write {kind}: [a, b]")
    nodes: list[Node] = []
    before = len(faults)
    for index, member in enumerate(value):
        place = join_path(path, index)
        if (fault := domain.member_fault(member)) is not None:
            nodes.append(refused(faults, place, *fault))
            continue
        nodes.append(read(member, place, faults))
        if not domain.in_turn and nodes[-1].points != 1:
            # Every grid point must get a configuration, but a branch is not certain to be drawn.
            faults.append(Fault(place, f"a grid inside {kind}", "use grid here instead: it tries every member"))
    faults += domain.list_faults(value, path)
    if len(faults) == before:  # members that were written differently can be equal with defaults and types
        faults += domain.list_faults([node.plain() for node in nodes], path)
    return domain(tuple(nodes))


def _is_finite(value: Plain) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max

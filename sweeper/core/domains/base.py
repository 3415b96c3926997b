"""What a parsed search space consists of, and the bases of the domains, each of which is a file of this folder.

A parsed space is a tree of `Constant`, `Fields` (a mapping), `Members` (a list to choose from) and `Interval`
(numbers). A domain declares here all that other parts of the program ask of one. None of them names a kind.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import ClassVar, Protocol, Self, TypeAlias, TypeGuard, TypeVar

from sweeper.core.domains.values import Plain
from sweeper.core.errors import Fault

Number: TypeAlias = int | float

#: A plain value from which a domain's value follows: a member's index, or what an interval's `number` takes.
Choice: TypeAlias = int | float

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
class Constant:
    """One value, the same in every configuration: a scalar or a list of scalars."""

    value: Plain


@dataclass(frozen=True)
class Fields:
    """A mapping; its keys exist together."""

    nodes: dict[str, Node]


@dataclass(frozen=True)
class Members:
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


@dataclass(frozen=True)
class Interval(ABC):
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

    def every(self) -> Iterator[Number]:
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

    def every(self) -> Iterator[Number]:
        """Yield every value, in order."""
        return map(self.on_step, range(self.steps + 1))


Node: TypeAlias = Constant | Fields | Members | Interval

#: Placeholder for a part of a space whose faults have been recorded.
INVALID = Constant(None)


def _is_finite(value: Plain) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max

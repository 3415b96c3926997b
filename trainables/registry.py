"""Named components and the hyperparameters they take: one description, used to build, to validate and to list.

A `Registry` maps a name in a search space (a loss, an architecture, a data set, an optimiser, a post-hoc
method) to a `Component`: how to build it and which `Hyperparameter`s it takes. The search-space reader checks
values against these descriptions before anything runs, and `sweeper spaces` prints them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["number", "integer", "text", "boolean", "numbers"]


@dataclass(frozen=True)
class Hyperparameter:
    """One hyperparameter: its kind, default, valid range, and where default and range come from.

    Attributes:
        name: the key in a search space.
        kind: `number` (float), `integer`, `text`, `boolean`, or `numbers` (a list of numbers).
        default: the value used when a search space is silent; `None` means the component decides.
        minimum, maximum: the valid range, ends included unless `open_minimum` / `open_maximum`.
        choices: the valid values of a `text`; empty means any.
        reason: one sentence that says why the range ends where it does.
        source: paper and section the default comes from.
        required: a search space must give it.
    """

    name: str
    kind: Kind = "number"
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    open_minimum: bool = False
    open_maximum: bool = False
    choices: tuple[str, ...] = ()
    reason: str = ""
    source: str = ""
    required: bool = False

    @property
    def range_text(self) -> str:
        """The valid values in words, e.g. `(0, 1]`, `msp | margin`, `true | false`."""
        if self.kind == "boolean":
            return "true | false"
        if self.choices:
            return " | ".join(self.choices)
        if self.kind == "text":
            return "text"
        if self.minimum is None and self.maximum is None:
            return "any number" if self.kind != "integer" else "any whole number"
        low = "(-inf" if self.minimum is None else f"{'(' if self.open_minimum else '['}{self.minimum:g}"
        high = "inf)" if self.maximum is None else f"{self.maximum:g}{')' if self.open_maximum else ']'}"
        return f"{low}, {high}"

    def fault(self, value: Any) -> str | None:
        """Return the rule that `value` breaks as one sentence, or `None` when it is valid."""
        if value is None and self.default is None and not self.required:
            return None
        if self.kind == "numbers":
            if not isinstance(value, (list, tuple)) or not all(_is_number(v) for v in value):
                return f"{self.name} = {value!r} must be a list of numbers"
            return next((f for f in map(self._range_fault, value) if f), None)
        if self.kind == "boolean":
            return None if isinstance(value, bool) else f"{self.name} = {value!r} must be true or false"
        if self.kind == "text":
            return self._text_fault(value)
        if not _is_number(value):
            return f"{self.name} = {value!r} must be a number"
        if self.kind == "integer" and isinstance(value, float) and not value.is_integer():
            return f"{self.name} = {value!r} must be a whole number"
        return self._range_fault(value)

    def _text_fault(self, value: Any) -> str | None:
        if not isinstance(value, str):
            return f"{self.name} = {value!r} must be text"
        if self.choices and value not in self.choices:
            known = ", ".join(self.choices)
            return f"{self.name} = {value!r} must be one of {known}{did_you_mean(value, self.choices)}"
        return None

    def _range_fault(self, value: float) -> str | None:
        below = self.minimum is not None and (value < self.minimum or (self.open_minimum and value == self.minimum))
        above = self.maximum is not None and (value > self.maximum or (self.open_maximum and value == self.maximum))
        if below or above or not math.isfinite(value):
            because = f": {self.reason}" if self.reason else ""
            return f"{self.name} = {value:g} is outside {self.range_text}{because}"
        return None


@dataclass(frozen=True)
class Component:
    """A named, buildable thing. `check` may add rules over several hyperparameters at once."""

    name: str
    build: Callable[..., Any]
    hyperparameters: tuple[Hyperparameter, ...] = ()
    summary: str = ""
    source: str = ""
    check: Callable[[Mapping[str, Any]], str | None] | None = None
    tags: frozenset[str] = field(default_factory=frozenset)

    def hyperparameter(self, name: str) -> Hyperparameter | None:
        """Return the description of hyperparameter `name`, or `None`."""
        return next((h for h in self.hyperparameters if h.name == name), None)

    def faults(self, values: Mapping[str, Any]) -> list[str]:
        """Return every rule that concrete `values` break, one sentence each."""
        known = tuple(h.name for h in self.hyperparameters)
        found = [
            f"{self.name} takes no hyperparameter {key!r}{did_you_mean(key, known)}"
            for key in values
            if key not in known
        ]
        for description in self.hyperparameters:
            if description.name in values:
                fault = description.fault(values[description.name])
                found += [fault] if fault else []
            elif description.required:
                found.append(f"{self.name} needs {description.name} ({description.range_text})")
        if not found and self.check is not None:
            fault = self.check(values)
            found += [fault] if fault else []
        return found


class Registry(Mapping[str, Component]):
    """The components of one kind, by name. Adding a component is one `register` call in its own file."""

    def __init__(self, kind: str) -> None:
        """Create an empty registry; `kind` is the noun used in messages, e.g. `loss`."""
        self.kind = kind
        self._components: dict[str, Component] = {}

    def __getitem__(self, name: str) -> Component:
        return self._components[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def __len__(self) -> int:
        return len(self._components)

    def register(self, component: Component) -> Component:
        """Add a component. Raises ValueError when the name is taken."""
        if component.name in self._components:
            raise ValueError(f"the {self.kind} {component.name!r} is registered already")
        self._components[component.name] = component
        return component

    def fault(self, name: str) -> str | None:
        """Return why `name` is not in the registry (with the nearest name), or `None` when it is."""
        if name in self._components:
            return None
        return f"unknown {self.kind} {name!r}{did_you_mean(name, tuple(self))}"

    def build(self, name: str, *arguments: Any, **hyperparameters: Any) -> Any:
        """Build component `name`. Raises ValueError with every rule that name or hyperparameters break."""
        unknown = self.fault(name)
        if unknown:
            raise ValueError(unknown)
        faults = self[name].faults({k: v for k, v in hyperparameters.items() if not hasattr(v, "shape")})
        if faults:
            raise ValueError("; ".join(faults))
        return self[name].build(*arguments, **hyperparameters)


def did_you_mean(value: str, names: tuple[str, ...]) -> str:
    """Return `; did you mean 'x'?` with the nearest of `names`, else the list of them, else nothing."""
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def _is_number(value: Any) -> bool:
    """Tell whether `value` is a number; a whole one beyond 64 bits fits no column, tensor or float."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float)

"""Named components and the hyperparameters they take: one description, used to build, to validate and to list.

A `Registry` maps a name in a search space (a loss, an architecture, a data set, an optimiser, a post-hoc
method) to a `Component`: how to build it and which `Hyperparameter`s it takes. The search-space reader checks
values against these descriptions before anything runs, and `sweeper spaces` prints them.

A name may also be a user's own: an import path, `my_losses:Tilted`, or an entry point of an installed package
(`trainables.extensions`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from trainables.registry.nearest import did_you_mean

Kind = Literal["number", "integer", "text", "boolean", "numbers", "texts"]


@dataclass(frozen=True)
class Hyperparameter:
    """One hyperparameter: its kind, default, valid range, and where default and range come from.

    Attributes:
        name: the key in a search space.
        kind: `number` (float), `integer`, `text`, `boolean`, `numbers` or `texts` (lists of them).
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
        if self.kind in ("text", "texts"):
            return "text" if self.kind == "text" else "list of texts"
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
        if self.kind == "texts":
            listed = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
            return None if listed else f"{self.name} = {value!r} must be a list of texts"
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
    """A named, buildable thing.

    Attributes:
        name: in a search space.
        build: makes it, from what its kind is given and its hyperparameters.
        hyperparameters: what it takes.
        summary: one line for `sweeper spaces`.
        source: paper and section, or the package that a user's own comes from.
        check: adds a rule over several hyperparameters at once.
        tags: marks that the project's own code looks at.
        columns: what a post-hoc method's `parameters` hold, which become columns.
    """

    name: str
    build: Callable[..., Any]
    hyperparameters: tuple[Hyperparameter, ...] = ()
    summary: str = ""
    source: str = ""
    check: Callable[[Mapping[str, Any]], str | None] | None = None
    tags: frozenset[str] = field(default_factory=frozenset)
    columns: tuple[str, ...] = ()

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


class ExtensionError(ValueError):
    """A component of a user's own that cannot be used: one sentence with the place in the user's file."""


class OwnComponents(Protocol):
    """Finds components of a user's own and makes them into `Component`s: `trainables.extensions.own.OwnFamily`."""

    @property
    def group(self) -> str:
        """The last part of the name of its entry points, e.g. `losses`."""

    def names(self) -> Mapping[str, str]:
        """Return the names that installed packages give, each with its import path. Nothing is imported for that."""

    def component(self, name: str, path: str) -> Component:
        """Return what `name` stands for, imported from `path`. Raises ExtensionError when it cannot be used."""


class Registry(Mapping[str, Component]):
    """The components of one kind, by name. Adding a component is one `register` call in its own file.

    A registry with `own` also knows components of the user's own: by import path, and by the names that installed
    packages give in their entry points. They are imported when they are asked for.
    """

    def __init__(self, kind: str, own: OwnComponents | None = None) -> None:
        """Create an empty registry; `kind` is the noun used in messages, e.g. `loss`; `own` finds users' components."""
        self.kind = kind
        self.own = own
        self.trusting = False
        self._components: dict[str, Component] = {}
        self._own: dict[str, Component] = {}

    def __getitem__(self, name: str) -> Component:
        """Return a component. Raises KeyError for an unknown name, ExtensionError for one that cannot be used."""
        if name in self._components:
            return self._components[name]
        if name not in self._own:
            if not (is_import_path(name) or name in self.installed()):
                raise KeyError(name)
            if self.own is None:
                raise ExtensionError(f"{name}: this project takes no {self.kind} of your own; name one of its own")
            self._own[name] = self.own.component(name, self.installed().get(name, name))
        return self._own[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.fault(name) is None

    def __iter__(self) -> Iterator[str]:
        return iter((*self._components, *(name for name in self.installed() if name not in self._components)))

    def __len__(self) -> int:
        return len([*iter(self)])

    def register(self, component: Component) -> Component:
        """Add a component. Raises ValueError when the name is taken."""
        if component.name in self._components:
            raise ValueError(f"the {self.kind} {component.name!r} is registered already")
        self._components[component.name] = component
        return component

    def installed(self) -> Mapping[str, str]:
        """Return the names that installed packages add, each with its import path. Nothing is imported for that."""
        return {} if self.own is None else self.own.names()

    @property
    def group(self) -> str:
        """The last part of its entry points' name, `losses` say; empty where it takes no components of a user's own."""
        return "" if self.own is None else self.own.group

    def is_own(self, name: str) -> bool:
        """Tell whether a name is a user's own: not one of the project's components."""
        return name not in self._components

    def trusts(self, name: str) -> bool:
        """Tell whether `name` is taken as it is, with its hyperparameters, because it was checked before."""
        return self.trusting and self.is_own(name)

    def trusted(self) -> Registry:
        """Return a registry of the same components that imports nothing: it takes users' own names as they are."""
        view = Registry(self.kind, self.own)
        view._components, view.trusting = self._components, True
        return view

    def forget_own(self) -> None:
        """Import the user's own components anew when they are asked for next."""
        self._own.clear()

    def fault(self, name: str) -> str | None:
        """Return why `name` cannot be built (with the nearest name where it is unknown), or `None` when it can."""
        try:
            self[name]
        except KeyError:
            return f"unknown {self.kind} {name!r}{did_you_mean(name, tuple(self))}"
        except ExtensionError as error:
            return str(error)
        return None

    def build(self, name: str, *arguments: Any, **hyperparameters: Any) -> Any:
        """Build component `name`. Raises ValueError with every rule that name or hyperparameters break."""
        unknown = self.fault(name)
        if unknown:
            raise ValueError(unknown)
        faults = self[name].faults({k: v for k, v in hyperparameters.items() if not hasattr(v, "shape")})
        if faults:
            raise ValueError("; ".join(faults))
        return self[name].build(*arguments, **hyperparameters)


def is_import_path(name: str) -> bool:
    """Tell whether a name is written as an import path, `module.file:Name`."""
    return ":" in name


def column_label(name: str) -> str:
    """Return a component's name as part of a column's name, which SQL must not need to quote.

    Names are so already; of an import path it is what stands after the colon, `my_package.methods:ShiftScale` as
    `shift_scale`.
    """
    if not is_import_path(name):
        return name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(":")[2])
    return re.sub(r"\W+", "_", words).lower()


def _is_number(value: Any) -> bool:
    """Tell whether `value` is a number; a whole one beyond 64 bits fits no column, tensor or float."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float)

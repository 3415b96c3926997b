"""Hyperparameters: values and valid ranges, read from the signature and docstring of a component's constructor.

    def mlp(input_shape, classes: int, width: Annotated[int, "[1, inf)"] = 256, form: Literal["a", "b"] = "a"): ...

A type gives the kind of a value and, if `Annotated`, its valid values. In an annotation, a text is a range, with an
optional reason after a colon, a tuple lists choices, and a `Hyperparameter` declares everything. For the project's own
components, `Args:` in the docstring gives the reason of a range, unless the range has one, and, in brackets at the end,
the source of the default. User code can declare `HYPERPARAMETERS` instead.
"""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, SupportsFloat, TypeVar, Union

from trainables.registry.names import QUANTITIES, did_you_mean

#: A hyperparameter's value in a search space; `None` lets the component decide.
HyperparameterValue = float | int | str | bool | None | Sequence[float]


Default = TypeVar("Default", float, None)


def number_in(values: Mapping[str, object], name: str, default: Default) -> float | Default:
    """Return the number `values[name]`, or `default` if it is missing or `None`.

    Raises:
        ValueError: the value is not a number.
    """
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, SupportsFloat):
        return float(value)
    raise ValueError(f"{name} = {value!r} must be a number")


def hyperparameter_values(values: Mapping[str, Any]) -> dict[str, HyperparameterValue]:
    """Check the types of hyperparameters that were read from a file, and return them.

    Raises:
        TypeError: a value is neither a number, a text, true or false, nor a list of numbers.
    """
    for name, value in values.items():
        listed = isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value)
        if not (value is None or listed or isinstance(value, (bool, int, float, str))):
            raise TypeError(f"{name} = {value!r} must be a number, a text, true or false, or a list of numbers")
    return dict(values)


Kind = Literal["number", "integer", "text", "boolean", "numbers", "texts"]


@dataclass(frozen=True)
class Hyperparameter:
    """One hyperparameter: its kind, default and valid range, and the sources of default and range.

    Attributes:
        name: key in a search space; omitted in an annotation, where the argument's name is used.
        kind: `number` (float), `integer`, `text`, `boolean`, `numbers` or `texts` (lists of them).
        default: value if a search space gives none. By default, a `Component` takes this value from the signature of
            `build`; `None` means the component decides.
        minimum, maximum: valid range, ends included unless `open_minimum` / `open_maximum`.
        quantity: key of `QUANTITIES` that it is, if its name is another one.
        range: the valid range as one text, e.g. `(0, 1]` or `[0, inf)`, instead of those four attributes.
        choices: valid values of a `text`, or of the members of `texts`; empty means any.
        reason: one sentence with the reason for the limits of the range.
        source: paper and section of the default.
        required: whether a search space must give it.
        names: kind of component that the value names, e.g. `loss`. The value is a text or a mapping with a `name`.
            Empty for none. It identifies values that may be user-defined code.

    Example:
        >>> gamma = Hyperparameter("gamma", range="[0, inf)", reason="the focal weight must not grow with confidence")
        >>> gamma.range_text, gamma.fault(-1.0)
        ('[0, inf)', 'gamma = -1 is outside [0, inf): the focal weight must not grow with confidence')
    """

    name: str = ""
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
    names: str = ""
    range: str = ""
    quantity: str = ""

    def __post_init__(self) -> None:
        """Derive the ends of the valid range from the text `range`. Raises ValueError for an unknown quantity."""
        if self.quantity and self.quantity not in QUANTITIES:
            raise ValueError(f"quantity = {self.quantity!r} is unknown{did_you_mean(self.quantity, (*QUANTITIES,))}")
        if self.range:
            number = int if self.kind == "integer" else float
            low, high = (None if math.isinf(float(end)) else number(end) for end in self.range[1:-1].split(","))
            opened = {"open_minimum": self.range[0] == "(", "open_maximum": self.range[-1] == ")"}
            for name, value in {"minimum": low, "maximum": high, "range": "", **opened}.items():
                object.__setattr__(self, name, value)

    @property
    def range_text(self) -> str:
        """Valid values in words, e.g. `(0, 1]`, `msp | margin`, `true | false`."""
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
        """Return the rule that `value` breaks as one sentence; `None` if it is valid."""
        # `None` as default means that the component decides, so a search space may write it, too.
        if value is None and self.default is None and not self.required:
            return None
        if self.kind == "numbers":
            if not isinstance(value, (list, tuple)) or not all(_is_number(v) for v in value):
                return f"{self.name} = {value!r} must be a list of numbers"
            return next((f for f in map(self._range_fault, value) if f), None)
        if self.kind == "texts":
            listed = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
            if listed and (not self.choices or set(value) <= {*self.choices}):
                return None
            return f"{self.name} = {value!r} must be a list of {' and '.join(self.choices) or 'texts'}"
        if self.kind == "boolean":
            return None if isinstance(value, bool) else f"{self.name} = {value!r} must be true or false"
        if self.kind == "text":
            return self._text_fault(value)
        if not _is_number(value):
            return f"{self.name} = {value!r} must be a number"
        if self.kind == "integer" and isinstance(value, float) and not value.is_integer():
            return f"{self.name} = {value!r} must be a whole number"
        return self._range_fault(value)

    def _text_fault(self, value: object) -> str | None:
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


def _is_number(value: object) -> bool:
    """Return whether `value` is a number that tables and tensors can hold."""
    if isinstance(value, int):
        # `bool` is a subclass of `int`; an integer of more than 64 bits fits no column, tensor or float.
        return not isinstance(value, bool) and abs(value) < 2**63
    return isinstance(value, float)


KINDS: dict[object, Kind] = {float: "number", int: "integer", bool: "boolean", str: "text"}


class ExtensionError(ValueError):
    """User-defined code cannot be used. The message names the code, the reason and the remedy."""


def hyperparameters_of(
    target: Callable[..., object], path: str, leading: Sequence[str], apart: Collection[str] | None = None
) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters that `target` takes after its leading arguments.

    Args:
        target: a class or function; its `HYPERPARAMETERS`, if any, take precedence.
        path: its import path, for messages.
        leading: names of the positional arguments with which its kind is called.
        apart: for the project's own components, arguments that are not hyperparameters; `**options` is never a
            hyperparameter. `None` for user-defined code.

    Raises:
        ExtensionError: some arguments cannot be read or passed; the message names all of them.

    Example:
        >>> def tilted(logits, targets, tilt: Annotated[float, "[0, 2]"] = 1.0): ...
        >>> (tilt,) = hyperparameters_of(tilted, "my_losses:tilted", ("logits", "targets"))
        >>> tilt.name, tilt.default, tilt.range_text
        ('tilt', 1.0, '[0, 2]')
    """
    try:
        arguments = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError) as error:
        raise ExtensionError(f"{path}: its arguments cannot be determined ({error}); wrap it in a function") from error
    first, own = arguments[: len(leading)], arguments[len(leading) :]
    wanted = f"{path}: it is called with ({', '.join([*leading, '…'])})" if leading else f"{path}: its arguments"
    if len(first) < len(leading) or any(a.kind is a.KEYWORD_ONLY or a.kind is a.VAR_KEYWORD for a in first):
        raise ExtensionError(f"{wanted}, but takes {inspect.signature(target)}")
    declared = getattr(target, "HYPERPARAMETERS", None)
    if declared is not None:
        if not all(isinstance(item, Hyperparameter) for item in declared):
            raise ExtensionError(f"{path}: HYPERPARAMETERS must be a tuple of trainables.registry.Hyperparameter")
        return tuple(declared)
    texts: dict[str, tuple[str, str]] = {}
    if apart is not None:
        texts, own = argument_texts(target), [a for a in own if a.name not in apart and a.kind is not a.VAR_KEYWORD]
    hints = _hints(target, users=apart is None)
    described, faults = [], []
    for argument in own:
        try:
            described.append(_described(argument, hints.get(argument.name), texts.get(argument.name, ("", ""))))
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ExtensionError(f"{path}: {'; '.join(faults)}")
    return tuple(described)


def catalogue_words(target: Callable[..., object]) -> tuple[str, str]:
    """Return a docstring's summary, which is its first paragraph, and the text after its `Source:`.

    Each can be empty.
    """
    text = inspect.getdoc(target.func if isinstance(target, partial) else target) or ""
    source = re.search(r"^Source: (.*?)\.?(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    summary, source_words = text.partition("\n\n")[0], source[1] if source else ""
    return " ".join(summary.split()).removesuffix("."), " ".join(source_words.split())


def _hints(target: Callable[..., object], *, users: bool) -> dict[str, object]:
    target = target.func if isinstance(target, partial) else target
    try:
        if isinstance(target, type):  # a subclass of a dataclass can define another `__init__`
            target = next(base for base in target.__mro__ if "__init__" in vars(base))
            target = target if "__dataclass_fields__" in vars(target) else vars(target)["__init__"]
        return typing.get_type_hints(target, include_extras=True)
    except Exception:
        if not users:
            raise
        return {}  # a hint cannot be resolved, for example one behind TYPE_CHECKING; the default implies the type


def argument_texts(target: Callable[..., object]) -> dict[str, tuple[str, str]]:
    """Return the reason and the source of each argument from a docstring's `Args:`."""
    text = inspect.getdoc(target.func if isinstance(target, partial) else target) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:(?: .*)?\n?)*)", text, re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE)
    halves = ((name, re.fullmatch(r"(.*?)\.? ?(?:\[([^][]*)\]\.?)?", " ".join(said.split()))) for name, said in entries)
    return {name: (half[1], half[2] or "") for name, half in halves if half}


def _described(argument: inspect.Parameter, hint: object, said: tuple[str, str]) -> Hyperparameter:
    if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD, argument.POSITIONAL_ONLY):
        raise ValueError(f"{argument} cannot be given in a search space; name each hyperparameter")
    # A signature can have `None` as a default, so a missing default has its own mark.
    required = argument.default is argument.empty
    default = None if required else argument.default
    hint, *declared = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    given = next((item for item in declared if isinstance(item, Hyperparameter)), None)
    hint = _without_none(hint) if hint is not None else (None if default is None else type(default))
    kind = given.kind if given is not None and given.kind != "number" else _kind(hint)
    if kind is None:
        raise ValueError(
            f"the type of {argument.name} is not known; write {argument.name}: float, or int, bool, str, list[float]"
        )
    given = given or Hyperparameter()
    choices = next((item for item in declared if isinstance(item, tuple)), given.choices)
    rule = next((item for item in declared if isinstance(item, str) and item[:1] in ("[", "(")), "")
    within, _, why = rule.partition(": ")
    described = replace(
        given,
        name=argument.name,
        kind=kind,
        default=default,
        required=required,
        range=within,
        choices=typing.get_args(hint) if typing.get_origin(hint) is Literal else choices,
        reason=given.reason or why or said[0],
        source=said[1] or given.source,
    )
    fault = described.fault(default) if default is not None else None
    if fault is not None:
        raise ValueError(f"the default {fault}")
    return described


def _kind(hint: object) -> Kind | None:
    origin = typing.get_origin(hint)
    if hint in KINDS:
        return KINDS[hint]
    if origin is Literal and all(isinstance(value, str) for value in typing.get_args(hint)):
        return "text"
    if (origin or hint) in (list, tuple, Sequence):
        return "texts" if str in typing.get_args(hint) else "numbers"
    return None


def _without_none(hint: object) -> object:
    """Return the type in `float | None`, or in `float | Tensor` (lanes); other hints unchanged."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return hint
    inner = [part for part in typing.get_args(hint) if part is not type(None) and part.__name__ != "Tensor"]
    if set(inner) == {int, float}:  # a float hyperparameter takes whole numbers anyway
        return float
    return inner[0] if len(inner) == 1 else hint

"""Users' own objects as `Component`s, like the project's own: what the `base` of each family adapts them with.

A component's hyperparameters are read from the signature of what builds it.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Union

from trainables.extensions.targets import import_target, installed_names, provenance
from trainables.registry import Component, ExtensionError, Hyperparameter, Kind

Adapter = Callable[[object, str, str], Component]
"""Makes a component from (target, import path, name). Raises ExtensionError for a target of the wrong kind."""


@dataclass(frozen=True)
class OwnFamily:
    """The components of one kind that come from users' own code.

    Attributes:
        group: of their entry points, e.g. `losses`.
        adapt: makes a component from an imported object.
    """

    group: str
    adapt: Adapter

    def names(self) -> Mapping[str, str]:
        """Return the names that installed packages register, each with its import path. Nothing is imported."""
        return installed_names(self.group)

    def component(self, name: str, path: str) -> Component:
        """Return the component called `name`.

        Args:
            name: as a search space writes it.
            path: its import path.

        Raises:
            ExtensionError: it cannot be imported, or is of the wrong kind.
        """
        target = import_target(path)
        origin = ", ".join(part for part in (provenance(self.group, name), path if path != name else "") if part)
        if isinstance(target, Component):
            return replace(target, name=name, source=target.source or origin)
        component = self.adapt(target, path, name)
        summary = (inspect.getdoc(target) or "").partition("\n")[0]
        return replace(component, summary=summary, source=origin or "import path")


def described(target: object) -> str:
    """Return what a target is, for messages: `the class Tilted`, `a function`, `a str`."""
    if isinstance(target, type):
        return f"the class {target.__name__}"
    return "a function" if inspect.isfunction(target) else f"a {type(target).__name__}"


KINDS: dict[type, Kind] = {float: "number", int: "integer", bool: "boolean", str: "text"}


def hyperparameters_of(target: Callable[..., object], path: str, leading: Sequence[str]) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters that `target` takes after its first arguments.

    Args:
        target: a class or function; its `HYPERPARAMETERS`, if any, take precedence.
        path: its import path, for messages.
        leading: names of the positional arguments that its kind is called with.

    Raises:
        ExtensionError: names every argument that cannot be read or passed.
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
        if not all(isinstance(each, Hyperparameter) for each in declared):
            raise ExtensionError(f"{path}: HYPERPARAMETERS must be a tuple of trainables.registry.Hyperparameter")
        return tuple(declared)
    hints = _hints(target)
    found, faults = [], []
    for argument in own:
        try:
            found.append(_described(argument, hints.get(argument.name)))
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ExtensionError(f"{path}: {'; '.join(faults)}")
    return tuple(found)


def _hints(target: Callable[..., object]) -> dict[str, object]:
    try:
        return typing.get_type_hints(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]  # a class's own
    except Exception:
        return {}  # a hint that cannot be resolved; then the default implies the type


def _described(argument: inspect.Parameter, hint: object) -> Hyperparameter:
    if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD, argument.POSITIONAL_ONLY):
        raise ValueError(f"{argument} cannot be given in a search space; name each hyperparameter")
    required = argument.default is argument.empty
    default = None if required else argument.default
    hint = _without_none(hint) if hint is not None else (None if default is None else type(default))
    kind: Kind
    choices: tuple[str, ...] = ()
    if typing.get_origin(hint) is Literal and all(isinstance(value, str) for value in typing.get_args(hint)):
        kind, choices = "text", typing.get_args(hint)
    elif isinstance(hint, type) and hint in KINDS:
        kind = KINDS[hint]
    elif hint in (list, tuple) or (typing.get_origin(hint) or hint) in (list, tuple, Sequence):
        kind = "numbers"
    else:
        raise ValueError(
            f"the type of {argument.name} is not known; write {argument.name}: float, or int, bool, str, list[float]"
        )
    description = Hyperparameter(argument.name, kind, default, choices=choices, required=required)
    fault = description.fault(default) if not required else None
    if fault is not None:
        raise ValueError(f"the default {fault}")
    return description


def _without_none(hint: object) -> object:
    """Return the type in `float | None`; other hints unchanged."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return hint
    inner = [part for part in typing.get_args(hint) if part is not type(None)]
    if set(inner) == {int, float}:
        return float
    return inner[0] if len(inner) == 1 else hint

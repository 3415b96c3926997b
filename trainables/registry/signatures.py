"""Hyperparameters, read from the signature and the docstring of what builds a component.

    def mlp(input_shape, classes: int, width: Annotated[int, "[1, inf)"] = 256, form: Literal["a", "b"] = "a"): ...

A type says of which kind a value is and, if `Annotated`, which values are valid: a text is a range, with the reason
behind a colon if it has one, a tuple choices; a `Hyperparameter` declares what it says. `Args:` in the docstring of one
of the project's own says why the range ends there, else, and in brackets at the end where the default comes from.
Users' code may declare `HYPERPARAMETERS` instead.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Annotated, Literal, Union

from trainables.registry.component import Hyperparameter, Kind

KINDS: dict[object, Kind] = {float: "number", int: "integer", bool: "boolean", str: "text"}


class ExtensionError(ValueError):
    """Code of the user's own that cannot be used; the message says which, why, and what would do."""


def hyperparameters_of(
    target: Callable[..., object], path: str, leading: Sequence[str], apart: Collection[str] | None = None
) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters that `target` takes after its first arguments.

    Args:
        target: a class or function; its `HYPERPARAMETERS`, if any, take precedence.
        path: its import path, for messages.
        leading: names of the positional arguments that its kind is called with.
        apart: of one of the project's own, arguments that are none; `**options` are none either. `None`: users' code.

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
    texts: dict[str, tuple[str, str]] = {}
    if apart is not None:
        texts, own = _argument_texts(target), [a for a in own if a.name not in apart and a.kind is not a.VAR_KEYWORD]
    hints = _hints(target, users=apart is None)
    found, faults = [], []
    for argument in own:
        try:
            found.append(_described(argument, hints.get(argument.name), texts.get(argument.name, ("", ""))))
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ExtensionError(f"{path}: {'; '.join(faults)}")
    return tuple(found)


def catalogue_words(target: Callable[..., object]) -> tuple[str, str]:
    """Return the summary, a docstring's first paragraph, and what follows `Source:` in it; each empty if not there."""
    text = inspect.getdoc(target.func if isinstance(target, partial) else target) or ""
    source = re.search(r"^Source: (.*?)\.?(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    summary, source_words = text.partition("\n\n")[0], source[1] if source else ""
    return " ".join(summary.split()).removesuffix("."), " ".join(source_words.split())


def _hints(target: Callable[..., object], *, users: bool) -> dict[str, object]:
    target = target.func if isinstance(target, partial) else target
    try:
        by_fields = dataclasses.is_dataclass(target) or not isinstance(target, type)
        return typing.get_type_hints(target if by_fields else target.__init__, include_extras=True)
    except Exception:
        if not users:
            raise
        return {}  # a hint that cannot be resolved; then the default implies the type


def _argument_texts(target: Callable[..., object]) -> dict[str, tuple[str, str]]:
    """Return the reason and the source that the `Args:` of a docstring give for each argument."""
    text = inspect.getdoc(target.func if isinstance(target, partial) else target) or ""
    section = re.search(r"^(?:Args|Attributes):\n((?:(?: .*)?\n?)*)", text, re.MULTILINE)
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.MULTILINE)
    halves = ((name, re.fullmatch(r"(.*?)\.? ?(?:\[([^][]*)\]\.?)?", " ".join(said.split()))) for name, said in entries)
    return {name: (half[1], half[2] or "") for name, half in halves if half}


def _described(argument: inspect.Parameter, hint: object, said: tuple[str, str]) -> Hyperparameter:
    if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD, argument.POSITIONAL_ONLY):
        raise ValueError(f"{argument} cannot be given in a search space; name each hyperparameter")
    required = argument.default is argument.empty
    default = None if required else argument.default
    hint, *declared = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    given = next((each for each in declared if isinstance(each, Hyperparameter)), None)
    hint = _without_none(hint) if hint is not None else (None if default is None else type(default))
    kind = given.kind if given is not None and given.kind != "number" else _kind(hint)
    if kind is None:
        raise ValueError(
            f"the type of {argument.name} is not known; write {argument.name}: float, or int, bool, str, list[float]"
        )
    given = given or Hyperparameter()
    choices = next((each for each in declared if isinstance(each, tuple)), given.choices)
    rule = next((each for each in declared if isinstance(each, str) and each[:1] in ("[", "(")), "")
    within, _, why = rule.partition(": ")
    found = dataclasses.replace(
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
    fault = found.fault(default) if default is not None else None
    if fault is not None:
        raise ValueError(f"the default {fault}")
    return found


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
    """Return the type in `float | None`, or in `float | Tensor` of lanes; other hints unchanged."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return hint
    inner = [part for part in typing.get_args(hint) if part is not type(None) and part.__name__ != "Tensor"]
    if set(inner) == {int, float}:
        return float
    return inner[0] if len(inner) == 1 else hint

"""What a hyperparameter's value may be, and how a number is read from values that may hold anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsFloat, overload

HyperparameterValue = float | int | str | bool | None | Sequence[float]
"""A hyperparameter's value in a search space; `None` lets the component decide."""


@overload
def number_in(values: Mapping[str, object], name: str, default: float) -> float: ...


@overload
def number_in(values: Mapping[str, object], name: str, default: None = None) -> float | None: ...


def number_in(values: Mapping[str, object], name: str, default: float | None = None) -> float | None:
    """Return the number `values[name]`, or `default` where it is missing or `None`.

    Raises:
        ValueError: the value is no number.
    """
    value = values.get(name)
    if value is None:
        return default
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, SupportsFloat):
        return float(value)
    raise ValueError(f"{name} = {value!r} must be a number")


def hyperparameter_values(values: Mapping[str, object]) -> dict[str, HyperparameterValue]:
    """Return values that were read from a file as hyperparameters.

    Raises:
        TypeError: a value is neither a number, a text, true or false, nor a list of numbers.
    """
    found: dict[str, HyperparameterValue] = {}
    for name, value in values.items():
        if (
            value is None
            or isinstance(value, (bool, int, float, str))
            or (isinstance(value, (list, tuple)) and all(isinstance(each, (int, float)) for each in value))
        ):
            found[name] = value
        else:
            raise TypeError(f"{name} = {value!r} must be a number, a text, true or false, or a list of numbers")
    return found

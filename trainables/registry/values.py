"""What a hyperparameter's value may be, and how a number is read from values that may hold anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsFloat, overload

HyperparameterValue = float | int | str | bool | None | Sequence[float]
"""A value as a search space gives it; `None` lets the component decide."""


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

"""Rows of result tables, and functions that read one cell as the type of its column."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

#: A cell: an Arrow scalar in Python; None is SQL's NULL. Lists (logits) are read as Arrow arrays.
Value = str | int | float | bool | datetime | None

#: A row of a table or of a query's result, by column.
Row = Mapping[str, Value]

Rows = Sequence[Row]

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


def float_or_none(row: Row, column: str) -> float | None:
    """Return a number, or None where the cell is NULL or the row has no such column.

    Raises:
        TypeError: the cell holds text or a time.
    """
    value = row.get(column)
    if isinstance(value, (str, datetime)):
        raise TypeError(f"the column {column!r} holds {value!r}, not a number")
    return value


def measured_or_none(row: Row, column: str) -> float | None:
    """Return a number, or None where the cell is NULL or NaN, or the column absent. Raises as `float_or_none`."""
    value = float_or_none(row, column)
    return None if value is None or value != value else value  # only NaN differs from itself


def floats(rows: Rows, column: str) -> list[float]:
    """Return a column's numbers, NaN where the cell is NULL or absent. Raises as `float_or_none`."""
    values = (float_or_none(row, column) for row in rows)
    return [math.nan if value is None else value for value in values]


def float_of(row: Row, column: str) -> float:
    """Return a column's number in this row, which must not be NULL. NaN counts as a number.

    Raises:
        KeyError: the row has no such column.
        TypeError: the cell is NULL, or holds text or a time.
    """
    value = row[column]
    if value is None or isinstance(value, (str, datetime)):
        raise TypeError(f"the column {column!r} holds {value!r}, not a number")
    return value


def int_of(row: Row, column: str) -> int:
    """Return a column's whole number, which must not be NULL. Raises as `float_of`, and TypeError for a float."""
    value = float_of(row, column)
    if isinstance(value, float):
        raise TypeError(f"the column {column!r} holds {value!r}, not a whole number")
    return value


def measured_values(rows: Rows, column: str) -> list[float]:
    """Return a column's numbers without NULL and NaN. Raises as `float_or_none`."""
    return [value for row in rows if (value := measured_or_none(row, column)) is not None]


def by_trial(rows: Rows) -> dict[str, list[Row]]:
    """Group rows by trial, in their order."""
    return grouped(rows, lambda row: text_of(row, "trial"))


def grouped(members: Iterable[T], key: Callable[[T], Key]) -> dict[Key, list[T]]:
    """Group members by a key; keys and members keep the order in which they come."""
    # `itertools.groupby` would need sorted input, and rows of a table are not sorted by every key.
    groups: dict[Key, list[T]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return groups


def text_of(row: Row, column: str) -> str:
    """Return a column's text in this row, which must not be NULL.

    Raises:
        KeyError: the row has no such column.
        TypeError: the cell is NULL, or holds something else.
    """
    value = row[column]
    if not isinstance(value, str):
        raise TypeError(f"the column {column!r} holds {value!r}, not text")
    return value

"""A file's plain values, their paths, and how a part of them is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sweeper.core.errors import Fault

#: A value of a search space file; keys are text.
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

#: A mapping of a search space. Pydantic checks its structure, so the types of its values are not repeated here.
Values: TypeAlias = dict[str, Any]


def part_of(values: object, *keys: str) -> Any:
    """Return the value at `keys` in nested mappings; `None` where a key is missing or a level is not a mapping."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def listed(value: object) -> list[Plain]:
    """Return a list, or an empty one for any other value."""
    # Pydantic reports a value of the wrong type; the checks that use this need not do so again.
    return value if isinstance(value, list) else []


def mappings(value: object) -> list[Values]:
    """Return the mappings in a list; an empty list for any other value."""
    return [item for item in listed(value) if isinstance(item, dict)]


def join_path(path: str, key: str | int) -> str:
    """Return the path of `key` (an integer is a list index) inside `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def repeats(
    members: Sequence[Plain], path: str, rule: str = "{!r} appears twice", remedy: str = "remove one of the two"
) -> list[Fault]:
    """Return a fault for each member of the list at `path` that repeats an earlier one; `rule` names the member."""
    places = [index for index, member in enumerate(members) if member in members[:index]]
    return [Fault(join_path(path, index), rule.format(members[index]), remedy) for index in places]

"""Plain values: what YAML and JSON can write, and what travels between files, processes and the journal.

With the path of a value in a search space file, such as `space.loss.one_of[1].gamma`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

#: A value of a search space file; keys are text.
Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

#: A mapping of a search space whose structure pydantic checks: what stands at a key is known there, not here.
Values: TypeAlias = dict[str, Any]


def part_of(values: object, *keys: str) -> Any:
    """Return what stands below `keys` in mappings of mappings; `None` where nothing does, or one of them is none."""
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def listed(value: object) -> list[Plain]:
    """Return a list, or an empty one for any other value, whose type is somebody else's business."""
    return value if isinstance(value, list) else []


def mappings(value: object) -> list[Values]:
    """Return the mappings of a list; none of any other value."""
    return [each for each in listed(value) if isinstance(each, dict)]


def join_path(path: str, key: str | int) -> str:
    """Return the path of `key` (an integer: a list's index) inside `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key

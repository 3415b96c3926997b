"""Plain values: what YAML and JSON can write, and what travels between files, processes and the journal.

With the path of a value in a search space file, such as `space.loss.one_of[1].gamma`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""A value of a search space file; keys are text."""

Values: TypeAlias = dict[str, Any]
"""A mapping of a search space whose structure pydantic checks: what stands at a key is known there, not here."""


def join_path(path: str, key: str | int) -> str:
    """Return the path of `key` (an integer: a list's index) inside `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def parent_path(path: str) -> str:
    """Return the path without its last part; the empty path has none."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]

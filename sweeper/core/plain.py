"""Plain values: what YAML and JSON can write, and what travels between files, processes and the journal."""

from __future__ import annotations

from typing import TypeAlias

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""A value of a search space file; keys are text."""

"""The names under which installed packages register components, from their entry points."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import metadata

GROUP = "calibration_sweeper"
"""Entry points are in `calibration_sweeper.losses`, `.architectures`, `.datasets`, `.metrics` and `.posthoc`."""

NAME = re.compile(r"[a-z][a-z0-9_]*")
"""A name is part of column names, which SQL must not need to quote."""


@functools.cache
def _entry_points(group: str) -> dict[str, metadata.EntryPoint]:
    found: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=f"{GROUP}.{group}"):
        found.setdefault(point.name, point)
    return found


def installed_names(group: str) -> Mapping[str, str]:
    """Return the names of a group such as `losses`, each with its import path. Nothing is imported.

    Names that no column could have are left out; `sweeper doctor` reports them.
    """
    return {name: point.value for name, point in entry_points(group).items() if NAME.fullmatch(name)}


def entry_points(group: str) -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points of a group by name; where two packages use one name, the first on the path counts."""
    return _entry_points(group)


def provenance(group: str, name: str) -> str:
    """Return the package and version that a name comes from, e.g. `my-package 1.0`, or an empty text."""
    point = entry_points(group).get(name)
    return f"{point.dist.name} {point.dist.version}" if point is not None and point.dist is not None else ""


def look_again() -> None:
    """Read the entry points again on the next request: the path has changed."""
    _entry_points.cache_clear()

"""`--set path=value`: change one place of a search space file before it is checked.

A path is written as faults write it, `space.loss.one_of[2].coverage`; the value is YAML. Short forms are written out
when a path goes through them: `--set replicates.packing=fused` makes `replicates: 2` into `{count: 2, packing: fused}`.
Whether the key exists is the later checks' business, which name the nearest valid one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sweeper.core.errors import Fault
from sweeper.core.key_paths import join_path
from sweeper.core.plain import Plain
from sweeper.space.file import Document, parse_value
from sweeper.space.structure import SHORT_FORMS

_PATH = re.compile(r"[^.\[\]]+|\[\d+\]")


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Change `document` as the overrides say, in their order; each one that cannot be followed becomes a fault."""
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = _split_path(path.strip())
        if not equals or keys is None:
            rule = f"--set {override!r} is not of the form key=value"
            document.faults.append(Fault("", rule, "write e.g. --set scheduler.max_epochs=9"))
            continue
        value, faults = parse_value(text, path.strip())
        document.faults += faults or _assign(document, keys, value)


def _split_path(path: str) -> list[str | int] | None:
    """Return the keys of a path such as `a.b[2].c`, or `None` when it is not one."""
    parts = _PATH.findall(path)
    keys: list[str | int] = [int(part[1:-1]) if part.startswith("[") else part for part in parts]
    if not keys or isinstance(keys[0], int):
        return None
    joined = ""
    for key in keys:
        joined = join_path(joined, key)
    return keys if joined == path else None


def _assign(document: Document, keys: Sequence[str | int], value: Plain) -> list[Fault]:
    """Set the value at `keys`, creating mappings on the way; return why that cannot be done."""
    faults = _set(document.values, keys, "", value)
    if not faults:
        path = ""
        for key in keys:
            path = join_path(path, key)
        _forget_lines(document, path)
    return faults


def _set(here: Plain, keys: Sequence[str | int], path: str, value: Plain) -> list[Fault]:
    """Set the value at `keys` below `here`, the mapping at `path`."""
    key, *below = keys
    place = join_path(path, key)
    if isinstance(key, int):
        if not isinstance(here, list) or key >= len(here):
            size = f"a list of {len(here)}" if isinstance(here, list) else "not a list"
            return [Fault(place, f"--set: {path} is {size}", "indices count from 0")]
        if below:
            return _set(here[key], below, place, value)
        here[key] = value
        return []
    if not isinstance(here, dict):
        known = "a list; use [index]" if isinstance(here, list) else f"{here!r}, not a mapping"
        return [Fault(place, f"--set: {path} is {known}")]
    if below:
        inner = {} if here.get(key) is None else here[key]
        here[key] = (
            inner if isinstance(inner, (dict, list)) or place not in SHORT_FORMS else {SHORT_FORMS[place]: inner}
        )
        return _set(here[key], below, place, value)
    here[key] = value
    return []


def _forget_lines(document: Document, path: str) -> None:
    """Drop the lines of `path` and all below it: they come from the command line now."""
    document.overridden.add(path)
    for known in [p for p in document.lines if p == path or p.startswith((f"{path}.", f"{path}["))]:
        del document.lines[known]

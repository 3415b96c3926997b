"""Reading `sweep.yaml` and `manifest.json`, even if missing or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from sweeper.core.errors import SweeperError

_SHAPES: Mapping[str, Mapping[str, type]] = {
    "sweep.yaml": {
        "dataset": dict,
        "evaluation": dict,
        "evaluation.bins": int,
        "evaluation.posthoc": list,
        "header": dict,
        "objective": dict,
        "objective.metric": str,
        "objective.mode": str,
        "rehearsed": list,
        "replicates": dict,
        "replicates.count": int,
        "samples": int,
        "scheduler": dict,
        "scheduler.max_epochs": int,
        "searcher": dict,
        "space": dict,
    },
    "manifest.json": {
        "created": str,
        "dataset": dict,
        "extensions": dict,
        "hardware": dict,
        "reuse": list,
        "versions": dict,
        "warm_start": list,
    },
}
"""What readers rely on: these values, where they are there at all, are of these types."""


def read_specification(path: Path, *, required: bool = False) -> dict[str, Any]:
    """Return a sweep's resolved search space; empty where the file is missing.

    Raises SweeperError when the file is damaged, or `required` and missing.
    """
    if required and not path.exists():
        raise SweeperError(
            f"the sweep in {path.parent} has no {path.name}: only its tables can be read",
            "restore the file from a backup; the journal can only be continued with its original search space",
        )
    return _read(path, yaml.safe_load, (yaml.YAMLError, ValueError, RecursionError))


def read_manifest(path: Path, *, unknown_if_damaged: bool = False) -> dict[str, Any]:
    """Return a sweep's manifest; empty where the file is missing.

    Args:
        path: of the file.
        unknown_if_damaged: return an empty one as well where the file cannot be read: nothing is known then.

    Raises:
        SweeperError: the file is damaged.
    """
    try:
        values = _read(path, json.loads, (ValueError, RecursionError))
        try:
            datetime.fromisoformat(values.get("created", "2026-01-01"))
        except ValueError as error:
            raise _damaged(path, str(error)) from error
    except SweeperError:
        if unknown_if_damaged:
            return {}
        raise
    return values


def _read(path: Path, parse: Callable[[str], Any], faults: tuple[type[Exception], ...]) -> dict[str, Any]:
    unreadable: tuple[type[Exception], ...] = (OSError, *faults)
    if path.exists() and not path.is_file():
        raise _damaged(path, "it is not a regular file")
    try:
        values = parse(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except unreadable as error:
        reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
        raise _damaged(path, reason) from error
    if not isinstance(values, dict):
        raise _damaged(path, "it is not a mapping")
    for place, expected in _SHAPES.get(path.name, {}).items():
        value: Any = values
        for key in place.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None and (not isinstance(value, expected) or isinstance(value, bool)):
            raise _damaged(path, f"its {place} is not valid")
    return values


def _damaged(path: Path, reason: str) -> SweeperError:
    return SweeperError(
        f"{path} is damaged: {reason}", "restore it from a backup, or remove it: results are readable without it"
    )

"""Reading `sweep.yaml` and `manifest.json`, even if missing or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.space.file import parse_written

MAXIMUM_BYTES = 10_000_000
"""A manifest or resolved search space is some kilobytes; a larger file is not read."""

_SHAPES: Mapping[str, Mapping[str, type]] = {
    "sweep.yaml": {
        "confirms": dict,
        "confirms.configurations": list,
        "confirms.sweep": str,
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
        "command": list,
        "created": str,
        "dataset": dict,
        "dataset.name": str,
        "extensions": dict,
        "git": dict,
        "git.commit": str,
        "hardware": dict,
        "reuse": list,
        "submitter": str,
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
    return _read(path, parse_written)


def read_manifest(path: Path, *, unknown_if_damaged: bool = False) -> dict[str, Any]:
    """Return a sweep's manifest; empty where the file is missing.

    Args:
        path: of the file.
        unknown_if_damaged: return an empty one as well where the file cannot be read: nothing is known then.

    Raises:
        SweeperError: the file is damaged.
    """
    try:
        values = _read(path, _parse_json)
        try:
            started_at(values)
        except (ValueError, OverflowError) as error:
            raise _damaged(path, str(error)) from error
    except SweeperError:
        if unknown_if_damaged:
            return {}
        raise
    return values


def started_at(manifest: Mapping[str, Any]) -> float | None:
    """Return when a sweep began, Unix time in seconds; `None` where its manifest does not say.

    Raises ValueError, or OverflowError, for what is no time of this program's.
    """
    if "created" not in manifest:
        return None
    created = datetime.fromisoformat(str(manifest["created"]))
    if not 1970 < created.year < 9999:  # at the ends, another time zone's year does not exist
        raise ValueError(f"its created is the year {created.year}")
    return (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp()


def _parse_json(content: bytes) -> Any:
    """Return JSON's values. Raises ValueError, or RecursionError, for other bytes and numbers beyond 64 bits."""
    return json.loads(content.decode("utf-8"), parse_int=_whole_number)


def _whole_number(text: str) -> int:
    number = int(text)
    if abs(number) >= 2**63:
        raise ValueError(f"{text[:20]}… is not a whole number of at most 64 bits")
    return number


def _read(path: Path, parse: Callable[[bytes], Any]) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        raise _damaged(path, "it is not a regular file")
    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_BYTES + 1)
        if len(content) > MAXIMUM_BYTES:
            raise _damaged(path, f"it is larger than {MAXIMUM_BYTES} bytes")
        values = parse(content)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
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

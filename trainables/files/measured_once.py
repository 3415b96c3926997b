"""Answers to measurements that all processes of a sweep share: a file each, and the first one to be written counts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from trainables.files.atomic import temporary_file


def kept_choice(folder: Path, key: str, measure: Callable[[], str]) -> str:
    """Return the answer kept in `folder` under `key`; measure it, and keep it, where there is none.

    Processes that measure at the same time all return the answer of the first to be done. A folder that cannot be
    written leaves each its own.

    Args:
        folder: shared by the processes; made where it is missing.
        key: everything that the answer depends on, as text.
        measure: finds the answer.
    """
    place = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    found = _read(place)
    if found is not None:
        return found
    answer = measure()
    try:
        _write_first(place, json.dumps({"answer": answer, "measured_for": json.loads(key)}, indent=1))
    except OSError:
        return answer
    return _read(place) or answer


def _read(place: Path) -> str | None:
    try:
        return str(json.loads(place.read_text())["answer"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # missing, or cut off by a full disk: measured again


def _write_first(place: Path, text: str) -> None:
    """Write a file under a temporary name and rename it to `place`, unless a sound file is already there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(place.parent) as temporary:
        temporary.write_text(text)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, place)  # fails where the name is taken, in one step
        if _read(place) is None:
            temporary.replace(place)

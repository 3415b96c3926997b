"""This user's cache: copies of remote sweeps, which can be made again, and marks of what was allowed once.

Code and notifications that came with a folder somebody else may have written are asked about. A mark is an empty file;
its name is a digest of what was allowed. Whoever loses the cache is asked again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder: `SWEEPER_CACHE`, else `sweeper` in the user's cache folder. It need not exist yet."""
    named = os.environ.get("SWEEPER_CACHE")
    if named:
        return Path(named).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "sweeper"


CODE, NOTIFICATIONS = "code", "notify"


def is_allowed(kind: str, what: str) -> bool:
    """Return whether this user has allowed `what`, a text that identifies it, as a thing of this `kind`."""
    return _mark(kind, what).exists()


def allow(kind: str, what: str) -> None:
    """Remember that this user allows `what`; where the cache cannot be written, it is asked for again."""
    mark = _mark(kind, what)
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.touch(mode=0o600)


def _mark(kind: str, what: str) -> Path:
    return cache_folder() / "allowed" / f"{kind}-{hashlib.sha256(what.encode()).hexdigest()}"

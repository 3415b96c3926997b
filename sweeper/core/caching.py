"""Where this program keeps what can be made again: copies of remote sweeps."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder: `SWEEPER_CACHE`, else `sweeper` in the user's cache folder. It need not exist yet."""
    named = os.environ.get("SWEEPER_CACHE")
    if named:
        return Path(named).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "sweeper"

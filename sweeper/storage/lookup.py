"""Lookup of sweeps by name or path, for every command and function.

A sweep is a folder with its resolved search space, `sweep.yaml`, or with its `tables` alone, as somebody may have
copied it to read it. Its age is that of its beginning, which its manifest tells; what happens to the folder later
(a resume, a report, a copy) does not make it younger.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.storage.metadata import read_manifest
from trainables.files.atomic import is_temporary
from trainables.registry.nearest import nearest

SHOWN_NAMES = 8
"""An error lists so many of the sweeps that there are."""


class UnknownSweepError(SweeperError):
    """No sweep of that name or at that path."""


def is_sweep(folder: Path) -> bool:
    """Return whether a folder holds a sweep: its search space, or its tables alone."""
    paths = SweepPaths(folder)
    try:
        return paths.sweep_file.is_file() or paths.tables.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a NUL in it
        return False


def sweep_names(output: str | Path = "results") -> list[str]:
    """Return the names of the sweeps in the folder `output`, the one that began last first.

    Raises SweeperError for a folder that may not be read.
    """
    try:
        listed = [*Path(output).iterdir()]
    except PermissionError as error:
        raise SweeperError(f"{output} cannot be read: {error.strerror}", "ask its owner for access") from error
    except (OSError, ValueError):  # missing, no folder, or a name that can be none
        listed = []
    found = [SweepPaths(path) for path in listed if not is_temporary(path.name) and is_sweep(path)]
    return [paths.name for paths in sorted(found, key=_age, reverse=True)]


def find_sweep(name_or_path: str | Path, output: str | Path) -> SweepPaths:
    """Return the paths of a sweep that exists, by its name in the folder `output` or by its folder's path.

    Raises UnknownSweepError when there is none, naming those that there are.
    """
    direct, below = Path(name_or_path), Path(output) / name_or_path
    is_name = len(direct.parts) == 1 and direct.name != ".."
    for folder in (below, direct) if is_name else (direct, below):
        if is_sweep(folder):
            return SweepPaths(folder.resolve())
    names = sweep_names(output)
    hint = "there are no sweeps yet; start one with `sweeper run quickstart`"
    if names:
        hint = f"available sweeps: {', '.join(names[:SHOWN_NAMES])}{nearest(str(name_or_path), names)}"
    raise UnknownSweepError(f"there is no sweep {str(name_or_path)!r} in {output}", hint)


def _age(paths: SweepPaths) -> tuple[float, float]:
    """Return when a sweep began, in seconds of Unix time; of two in one second, by the files' times."""
    manifest = read_manifest(paths.manifest, unknown_if_damaged=True)
    written = _changed(paths.manifest)
    if "created" in manifest:
        created = datetime.fromisoformat(manifest["created"])
        return (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp(), written
    return _changed(paths.sweep_file) or _changed(paths.tables), written


def _changed(path: Path) -> float:
    """Return when a file was changed; 0 where there is none."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0

"""Lookup of sweeps by name or path, for every command and function.

A sweep is a folder with its resolved search space, `sweep.yaml`, or with its `tables` alone, as somebody may have
copied it to read it: that is enough for reading. What removes or moves a folder asks `sweep_fault`, which goes by what
manifest and journal say, and what writes into one asks `refuse_links` first: somebody else may have made it.

A sweep's age is that of its beginning, which its manifest tells; what happens to the folder later (a resume, a report,
a copy) does not make it younger.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.core.ids import RECALIBRATIONS, SweepPaths
from sweeper.journal.segments import piece_of
from sweeper.storage.metadata import read_manifest, started_at
from trainables.files.atomic import is_temporary
from trainables.registry.names import nearest

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


def sweep_fault(folder: Path) -> str | None:
    """Return why a folder is not a sweep that may be removed or moved, by what its manifest and journal say.

    Many a folder has a file `sweep.yaml` or a folder `tables`. A sweep has a manifest with seed and versions, or, where
    that is damaged, a journal with records; and nothing but records lies in its journal.
    """
    paths = SweepPaths(folder)
    if folder.is_symlink():
        return "it is a link"
    if not paths.sweep_file.is_file() or paths.sweep_file.is_symlink():
        return f"it has no {paths.sweep_file.name}"
    records = 0
    if os.path.lexists(paths.journal):
        if paths.journal.is_symlink() or not paths.journal.is_dir():
            return "its journal is no folder"
        for entry in os.scandir(paths.journal):
            if piece_of(entry.name.removesuffix(".damaged")) is None and not is_temporary(entry.name):
                return f"its journal has a file {entry.name!r}, which is no record"
            records += 1
    manifest = read_manifest(paths.manifest, unknown_if_damaged=True)
    if not records and not {"created", "seed", "versions"} <= manifest.keys():
        return "neither a manifest nor a journal says so"
    return None


def refuse_links(paths: SweepPaths) -> None:
    """Raise SweeperError when a link in a sweep's folder would lead what is written there to another place.

    A sweep has links of two kinds: `tables`, to one of its generations, and `recalibrations` in these. Whoever sends a
    folder could add others, to have files elsewhere written over or removed.
    """
    for link in _links(str(paths.root)):
        place = link.relative_to(paths.root).as_posix()
        if not any(pattern.fullmatch(f"{place} -> {link.readlink()}") for pattern in _OWN_LINKS):
            raise SweeperError(
                f"{link} is a link to {link.readlink()}, and sweeps have no such link: nothing was written",
                "remove it, or put in its place what it leads to, if you made it",
            )


_OWN_LINKS = (
    re.compile(r"tables -> generations/\d{4,}/?"),
    re.compile(rf"generations/\d{{4,}}/{RECALIBRATIONS} -> \.\./\.\./{RECALIBRATIONS}/?"),
)


def _links(folder: str) -> Iterator[Path]:
    """Yield every link below a folder; none is followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                yield from _links(entry.path)


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
    began = started_at(manifest)
    if began is not None:
        return began, written
    return _changed(paths.sweep_file) or _changed(paths.tables), written


def _changed(path: Path) -> float:
    """Return when a file was changed; 0 where there is none."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0

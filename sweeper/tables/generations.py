"""Generations of tables: folders that are built aside and published by renaming one symbolic link.

Readers come through the link `tables` and may list files before a swap and open them after it. So a name that has
been visible once stays, with the same rows, in every later generation; a swap only repairs and completes.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from sweeper.core.ids import TABLES, SweepPaths
from sweeper.tables.recalibrations import link_recalibrations
from trainables.files.atomic import clear_leftovers, replacing

INCOMING = "incoming"
"""Where trials leave their tables until the evaluation is journaled; no reader's pattern leads there."""

DAMAGED = "damaged"
"""Where files that cannot be read are kept for inspection instead of being deleted."""

_NUMBER = re.compile(r"\d{4,}")


class Generations:
    """The folder `generations/` of one sweep and the link that points into it."""

    def __init__(self, paths: SweepPaths) -> None:
        self._paths = paths
        self.incoming = paths.generations / INCOMING
        self.damaged: list[Path] = []

    @property
    def current(self) -> Path | None:
        """The published generation, or `None` before the first."""
        folder = self._paths.tables.resolve()
        return folder if self._paths.tables.is_symlink() and folder.is_dir() else None

    def clean(self) -> None:
        """Remove what a driver that is gone left behind: older and unpublished generations, unfinished files.

        Only the holder of the sweep's lease may call this.
        """
        root = self._paths.generations
        root.mkdir(parents=True, exist_ok=True)
        current = self.current
        for folder in root.iterdir():
            if _NUMBER.fullmatch(folder.name) and folder != current:
                shutil.rmtree(folder)
        # A linked folder is not the driver's: someone may be writing recalibrations there at this moment.
        folders = (folder for folder in root.glob("*/*") if folder.is_dir() and not folder.is_symlink())
        for folder in (self._paths.journal, *folders, *self._paths.checkpoints.glob("**/")):
            clear_leftovers(folder)
        clear_leftovers(self._paths.root, shared=True)  # `sweeper report` may be writing there
        for table in TABLES:
            (self.incoming / table).mkdir(parents=True, exist_ok=True)

    def create(self) -> Path:
        """Return a new folder for the next generation, with an empty folder a table; readers do not see it."""
        numbers = [int(folder.name) for folder in self._paths.generations.iterdir() if _NUMBER.fullmatch(folder.name)]
        generation = self._paths.generations / f"{max(numbers, default=0) + 1:04d}"
        for table in TABLES:
            (generation / table).mkdir(parents=True)
        link_recalibrations(self._paths, generation)
        return generation

    def publish(self, generation: Path) -> None:
        """Let readers see `generation` from now on; the one before stays until the sweep is opened again."""
        with replacing(self._paths.tables) as link:
            link.symlink_to(generation.relative_to(self._paths.root), target_is_directory=True)

    def set_aside(self, part: Path) -> Path:
        """Move a damaged file out of the readers' sight, keep it, and return where it is now."""
        folder = self._paths.generations / DAMAGED / part.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / part.name
        part.replace(target)
        self.damaged.append(target)
        return target


def carry(part: Path, folder: Path) -> None:
    """Give `folder` the same file under the same name: a hard link where the file system has them, else a copy."""
    target = folder / part.name
    try:
        target.hardlink_to(part)
    except OSError:
        shutil.copy2(part, target)

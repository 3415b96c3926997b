"""Folders for temporary files that do not outlive their process for long, however it dies.

A folder is locked by the process that uses it; the lock falls with the process. Whoever makes the next folder of the
same kind on this machine removes those that nobody holds.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

from trainables.files.locks import NoLocksError, lock_open_file

NEW_SECONDS = 60.0
"""A folder this young is left alone: its process may be about to lock it."""


class Scratch:
    """A folder of this process's own; removed on leaving the context, on `remove`, or when nothing refers to it."""

    def __init__(self, prefix: str) -> None:
        """Make a folder whose name begins with `prefix`, and remove such folders of processes that died."""
        _remove_abandoned(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(NoLocksError):  # then nobody removes it but this process
            lock_open_file(lock, patience=0)
        self.remove = weakref.finalize(self, _remove, self.path, lock)

    def __enter__(self) -> Path:
        """Give the folder."""
        return self.path

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Remove the folder."""
        self.remove()


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # gone meanwhile, another user's, or no folder
        try:
            found = os.fstat(lock)
            old = found.st_uid == os.getuid() and time.time() - found.st_mtime > NEW_SECONDS
            if old and lock_open_file(lock, patience=0):  # else its process lives, and holds the lock
                shutil.rmtree(folder, ignore_errors=True)
        except NoLocksError:
            return  # whose processes live cannot be told
        finally:
            os.close(lock)

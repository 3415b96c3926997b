"""A notice printed when the driver ends abruptly: how to continue.

Ray ends its driver's process in the middle of whatever it does when the cluster's head is gone, and a process that is
killed says nothing either. So a shell waits at the other end of a pipe and speaks for it when the pipe falls silent.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sweeper.core.errors import NO_SPACE, unwritable

_SCRIPT = 'read -r word || printf "%s\\n" "$1" >&2'


@contextmanager
def last_words(message: str) -> Iterator[None]:
    """Print `message` on this process's standard error if the process ends before the context does."""
    waiting = subprocess.Popen(
        ["sh", "-c", _SCRIPT, "sweeper", message],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the driver
    )
    try:
        yield
    finally:
        # Whatever ends the context, an exception included, speaks for itself.
        waiting.communicate(b"alive\n")


@contextmanager
def interruption_told(named: str) -> Iterator[None]:
    """Say how to continue when a second Ctrl-C ends the driver wherever it is; the first one lets it say so itself."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted: all results so far are kept; continue with `sweeper resume {named}`\n")
        raise


@contextmanager
def full_disk_told(named: str) -> Iterator[None]:
    """Raise DiskFullError in place of the operating system's error when no space is left, wherever that shows."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        remedy = f"free space, then run `sweeper resume {named}`; all results so far are kept"
        raise unwritable(f"{error.filename or 'the results folder'} cannot be written to", remedy, error) from error

"""A notice printed when the driver dies abruptly: how to continue.

Ray ends its driver's process in the middle of whatever it does when the cluster's head is gone, and a process that is
killed says nothing either. So a shell waits at the other end of a pipe and speaks for it when the pipe falls silent.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

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

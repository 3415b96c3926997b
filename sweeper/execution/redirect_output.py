"""Redirection of output: results to stdout, progress to stderr, output of libraries to the sweep's log file.

Ray and torch write from many threads and from compiled code to file descriptors 1 and 2, so it is the
descriptors that are turned to the log, and the console keeps a copy of the real stderr.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from rich.console import Console

from sweeper.text.display import SafeConsole


@contextmanager
def redirect_output(log: Path) -> Iterator[Console]:
    """Send everything written to stdout and stderr to `log`, and yield a console on the real stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    was_terminal = os.isatty(kept[1])
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    encoding = getattr(sys.stderr, "encoding", None)
    opened = os.fdopen(os.dup(kept[1]), "w", buffering=1, encoding=encoding, errors="replace")
    with opened as real_error, _streams_to(1, 2):
        handler = logging.StreamHandler(sys.stderr)
        logging.getLogger().addHandler(handler)
        try:
            yield SafeConsole(file=real_error, force_terminal=was_terminal, soft_wrap=not was_terminal)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            logging.getLogger().removeHandler(handler)
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])


@contextmanager
def _streams_to(out: int, error: int) -> Iterator[None]:
    """Send what Python prints to these descriptors where a notebook's kernel would send it to the cell."""
    with ExitStack() as stack:
        for stream, descriptor, redirect in ((sys.stdout, out, redirect_stdout), (sys.stderr, error, redirect_stderr)):
            if hasattr(stream, "pub_thread"):
                opened = stack.enter_context(os.fdopen(os.dup(descriptor), "w", buffering=1, errors="replace"))
                stack.enter_context(redirect(opened))
        yield

"""Imports for the end of a run, done when a core is idle: while Ray starts, or while the last trial trains."""

from __future__ import annotations

import importlib
import threading

FOR_THE_END = ("sweeper.reporting", "scipy.stats")
"""What the report needs: two thirds of a second that every command would wait for, were it imported at the start."""


def import_meanwhile(*modules: str) -> threading.Thread:
    """Import modules one after the other in a thread, and return it; one that fails is left to who needs it."""
    thread = threading.Thread(target=_import, args=modules, daemon=True, name="imports")
    thread.start()
    return thread


def _import(*modules: str) -> None:
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError:
            return

"""Imports for the end of a run, done while trials train: nobody waits for them then."""

from __future__ import annotations

import importlib
import threading


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

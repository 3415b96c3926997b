"""How Python processes are started: they import what is installed, never what lies in the working directory.

`python -m` puts the working directory before everything installed, so inside a folder from somebody else a `torch.py`
in it would run in every process that imports PyTorch. `-P` leaves it out (Python 3.11), `PYTHONSAFEPATH` does so for
the processes that such a process starts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

OUR_ROOT = Path(__file__).resolve().parents[2]
"""The folder of this project's packages: of the installed ones, or a checkout."""


def python_module(name: str, *arguments: str) -> list[str]:
    """Return the command that runs a module as a process, without the working directory on its search path."""
    return [sys.executable, "-P", "-m", name, *arguments]


def python_environment(**changes: str) -> dict[str, str]:
    """Return the environment for such a process: it finds the modules that this one finds, in the same order."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(search_path()),
        "PYTHONSAFEPATH": "1",
        **changes,
    }


def search_path() -> list[str]:
    """Return this process's module search path without the working directory.

    It stays where the project's own packages lie in it, or where the user put it into `PYTHONPATH` by its name.
    """
    named = {os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    kept = named | {str(OUR_ROOT)}
    here = os.path.realpath(os.curdir)
    return [entry for entry in sys.path if entry and (os.path.realpath(entry) != here or here in kept)]

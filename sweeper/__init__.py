"""The sweep service: planning, execution, recovery, storage, analysis and reports.

In a notebook or a script it reads like the command line (`sweeper.api` says what each takes and returns):

    import sweeper
    done = sweeper.run("quickstart", set={"samples": 12})
    sweeper.results.load(done.name).sql("select status, config_loss_name, avg(ece) from final group by all")

Errors are `sweeper.SweeperError`, with the sentences of the command line. Nothing is imported before it is used.
Imports `trainables`; nothing there imports this. Each folder's `__init__` says what it is for; CONTRIBUTING.md draws
which folder imports which.
"""

from __future__ import annotations

import importlib
from typing import Any

RUNNING = ("run", "plan", "resume", "status", "stop", "submit")
"""What runs sweeps: functions of `sweeper.api.commands`."""

ANALYSES = ("report", "compare", "recalibrate", "ensemble", "conformal", "claims", "what_if")
"""What reads finished ones: functions of `sweeper.api.analyses`."""

EXPORTS = ("export", "load_model", "figure", "table")
"""What takes results home: functions of `sweeper.api.exports`."""

COMMANDS = (*RUNNING, *ANALYSES)
"""The functions with the names of commands."""

_MODULES = {"commands": RUNNING, "analyses": ANALYSES, "exports": EXPORTS}

__all__ = [*COMMANDS, *EXPORTS, "SweeperError", "results"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import on first use: a command, or the package `results`."""
    if name == "results":
        return importlib.import_module("sweeper.results")
    if name == "SweeperError":
        return importlib.import_module("sweeper.core.errors").SweeperError
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"sweeper.api.{module}"), name)
    raise AttributeError(f"module 'sweeper' has no attribute {name!r}")

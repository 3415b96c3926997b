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

from sweeper.api import COMMANDS as _MODULES, function_of as _function_of

#: The functions with the names of commands.
COMMANDS = tuple(_MODULES)

__all__ = [*COMMANDS, "SweeperError", "TrainingLoop", "load_model", "results"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import on first use: a command, or the package `results`."""
    if name == "results":
        return importlib.import_module("sweeper.results")
    if name == "SweeperError":
        return importlib.import_module("sweeper.core.errors").SweeperError
    if name == "TrainingLoop":
        return importlib.import_module("trainables.training.own_loop").TrainingLoop
    if name == "load_model":
        return importlib.import_module("sweeper.api.exports").load_model
    if name in _MODULES:
        return _function_of(name)
    raise AttributeError(f"module 'sweeper' has no attribute {name!r}")

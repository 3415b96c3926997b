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

#: Other names → module that has them.
_OTHERS = {
    "Calibrator": "sweeper.exporting.estimator",
    "SweeperError": "sweeper.core.errors",
    "TrainingLoop": "trainables.training.own_loop",
    "calibration_report": "sweeper.reporting.calibration_report",
    "load_model": "sweeper.api.exports",
}

__all__ = [*COMMANDS, *_OTHERS, "results"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import on first use: a command, or the package `results`."""
    if name == "results":
        return importlib.import_module("sweeper.results")
    if name in _OTHERS:
        return getattr(importlib.import_module(_OTHERS[name]), name)
    if name in _MODULES:
        return _function_of(name)
    raise AttributeError(f"module 'sweeper' has no attribute {name!r}")

"""The service: what to run, how it runs and survives, where results land, how they are read and shown.

Imports `trainables`; nothing there imports this. Only `running.{executor,ray_session,ray_view}`, `remote.cluster` and
`search.optuna_search` import ray, only `sinks.mlflow*` import mlflow, and only `cli` prints.

In a notebook or a script it reads like the command line (`sweeper.api` says what each takes and returns):

    import sweeper
    done = sweeper.run("quickstart", set={"samples": 12})
    sweeper.results.load(done.name).sql("select status, config_loss_name, avg(ece) from final group by all")

Errors are `sweeper.SweeperError`, with the sentences of the command line. Nothing is imported before it is used. Two
commands are folders as well: `sweeper.report(…)` writes a report; `from sweeper.report import …` takes from the folder.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

COMMANDS = ("run", "plan", "resume", "status", "stop", "report", "compare", "recalibrate", "claims", "submit")
"""The commands that are functions of this package."""

SHARED = ("report", "claims")
"""Those whose name a folder of this package has, too; the folder can be called."""

__all__ = [*COMMANDS, "SweeperError", "results"]


class _Command(ModuleType):
    """A module that is a command as well: called, it does what the command of its name does."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return getattr(importlib.import_module("sweeper.api"), self.__name__.rpartition(".")[2])(*arguments, **named)


class _Package(ModuleType):
    """This package, which lets some of its modules be called."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SHARED and type(value) is ModuleType:
            value.__class__ = _Command
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import what is asked for: a command, or the module `results`."""
    if name == "results" or name in SHARED:
        return importlib.import_module(f"sweeper.{name}")
    if name == "SweeperError":
        return importlib.import_module("sweeper.errors").SweeperError
    if name in COMMANDS:
        return getattr(importlib.import_module("sweeper.api"), name)
    raise AttributeError(f"module 'sweeper' has no attribute {name!r}")

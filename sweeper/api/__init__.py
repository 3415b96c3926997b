"""The commands as functions, for notebooks and scripts: `sweeper.run(…)`, `sweeper.status(…)`."""

import importlib
from collections.abc import Callable
from typing import Any

#: Each command's function and the module of this folder that has it, by group, in the order of `sweeper --help`.
#:
#: A command has its function's name, `_` written as `-`; one at the end keeps a function apart from a module or a type.
GROUPS = {
    "Start": {
        **dict.fromkeys(("init", "spaces", "validate"), "housekeeping"),
        "plan": "commands",
        "doctor": "housekeeping",
    },
    "Run": dict.fromkeys(("run", "status", "stop", "resume", "import_"), "commands"),
    "Read": {**dict.fromkeys(("results_", "show", "report", "figure"), "exports"), "compare": "analyses"},
    "After training": {**dict.fromkeys(("recalibrate", "ensemble", "conformal"), "analyses"), "export": "exports"},
    "Browse": dict.fromkeys(("serve", "ui", "mcp"), "exports"),
}

#: Commands with commands of their own: what they are for, and these.
SUBCOMMANDS = {
    "cluster": (
        "Submit a sweep to Ray or Slurm, or follow its log.",
        dict.fromkeys(("submit", "logs", "token"), "clusters"),
    ),
    "manage": (
        "Delete, rename or archive sweeps; complete their MLflow runs.",
        {**dict.fromkeys(("delete", "rename", "archive"), "housekeeping"), "sync": "exports"},
    ),
}

COMMANDS = {
    name: module
    for group in (*GROUPS.values(), *(names for _, names in SUBCOMMANDS.values()))
    for name, module in group.items()
}


def function_of(command: str) -> Callable[..., Any]:
    """Return a command's function."""
    function: Callable[..., Any] = getattr(importlib.import_module(f"sweeper.api.{COMMANDS[command]}"), command)
    return function

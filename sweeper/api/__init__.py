"""The commands as functions, for notebooks and scripts: `sweeper.run(…)`, `sweeper.status(…)`."""

import importlib
from collections.abc import Callable

#: Help group → command function → module of this folder, in the order of `sweeper --help`.
#:
#: A command is named after its function, with `-` for `_`. A trailing `_` avoids a Python keyword or a module's name
#: (`import_`, `results_`).
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

#: Commands with subcommands: name → (help text, subcommand function → module).
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


def function_of(command: str) -> Callable[..., object]:
    """Return a command's function, imported on first use, with its arguments checked."""
    from sweeper.api.arguments import validated

    # One module per command: `sweeper status` should not pay for the imports of `sweeper compare`.
    return validated(getattr(importlib.import_module(f"sweeper.api.{COMMANDS[command]}"), command))

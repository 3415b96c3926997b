"""The commands as functions, for notebooks and scripts: `sweeper.run(…)`, `sweeper.status(…)`."""

COMMANDS = {
    **dict.fromkeys(("run", "resume", "plan", "stop", "status"), "commands"),
    **dict.fromkeys(("results_", "show", "report", "sync", "ui", "export", "figure", "table"), "exports"),
    **dict.fromkeys(("compare", "claims", "what_if", "recalibrate", "ensemble", "conformal", "focal_map"), "analyses"),
    "paper": "papers",
    **dict.fromkeys(("init", "validate", "list_", "delete", "rename", "archive", "spaces", "doctor"), "housekeeping"),
    **dict.fromkeys(("submit", "logs", "token"), "commands"),
}
"""Each command's function and the module of this folder that has it, in the order of `sweeper --help`.

A command has its function's name, `_` written as `-`; one at the end keeps a function apart from a module or a type.
"""

"""The commands as functions, for notebooks and scripts: `sweeper.run(…)`, `sweeper.status(…)`."""

#: Each command's function and the module of this folder that has it, by group, in the order of `sweeper --help`.
#:
#: A command has its function's name, `_` written as `-`; one at the end keeps a function apart from a module or a type.
GROUPS = {
    "Run": {
        **dict.fromkeys(("run", "plan", "resume", "status", "stop"), "commands"),
        **dict.fromkeys(("init", "validate", "spaces", "tutorial"), "housekeeping"),
        "import_": "commands",
    },
    "Read": {
        **dict.fromkeys(("results_", "show", "report"), "exports"),
        "compare": "analyses",
        **dict.fromkeys(("figure", "table", "ui", "serve", "mcp"), "exports"),
    },
    "After training": {**dict.fromkeys(("recalibrate", "ensemble", "conformal"), "analyses"), "export": "exports"},
    "Manage": {**dict.fromkeys(("delete", "rename", "archive", "doctor"), "housekeeping"), "sync": "exports"},
    "Cluster": {"submit": "commands"},
}

#: Commands below `sweeper cluster`.
CLUSTER = {"logs": "commands", "token": "commands"}

#: Commands of release 0.2 that `status`, `figure` and `cluster` took over: hidden, they work until 0.4.
OLD = {"list_": "housekeeping", **CLUSTER}

COMMANDS = {name: module for group in (*GROUPS.values(), OLD) for name, module in group.items()}

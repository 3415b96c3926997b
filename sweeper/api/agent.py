"""An MCP server (Model Context Protocol, over standard input and output) that offers commands as tools to an agent."""

from __future__ import annotations

import contextlib
import functools
import inspect
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, get_origin, get_type_hints

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from sweeper.api.arguments import Settings, Space, overrides, readable
from sweeper.core.display import CommandResult, as_data
from sweeper.core.errors import SweeperError
from sweeper.core.processes import python_environment, python_module
from sweeper.space.loading import load_spec
from sweeper.space.user_code import own_names
from trainables.files.stores.base import StoreError
from trainables.registry import importing_nothing

#: Parameters that tools omit: the server sets the output, and a tool writes no file and never waits.
LEFT_OUT = {"output", "to", "page", "picture", "form", "address", "slurm", "cluster", "watch", "discard_damaged"}


def tool(function: Callable[..., object], output: str) -> Callable[..., object]:
    """Wrap a command's function as a tool that returns its answer as data and its errors as messages.

    Args:
        function: Function of `sweeper.api`.
        output: Folder or store of the sweeps; the agent cannot choose another.
    """
    # The server builds the tool's JSON schema from signature and annotations, so both must be complete.
    hints, taken = get_type_hints(readable(function)), inspect.signature(function).parameters
    parameters = [
        parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY)
        for name, parameter in taken.items()
        if name not in LEFT_OUT and get_origin(hints[name]) is not Callable
    ]
    fixed = {"output": output} if "output" in taken else {}

    @functools.wraps(function)
    def call(**given: Any) -> object:
        try:
            # Standard output carries the protocol: anything else printed there would break the connection.
            with contextlib.redirect_stdout(sys.stderr):
                require_no_code(**given)
                answer = function(**given, **fixed)
        except (SweeperError, StoreError) as error:
            raise ToolError(str(error)) from error
        return {"answer": as_data(answer), "notes": list(answer.notes) if isinstance(answer, CommandResult) else []}

    call.__signature__ = inspect.Signature(parameters, return_annotation=dict[str, Any])  # type: ignore[attr-defined]
    return call


def require_no_code(space: Space | None = None, set: Settings = None, **others: object) -> None:
    """Raise SweeperError if a search space names custom code; import none of it."""
    # A space file can name any module. Importing it runs it, so an agent must not choose what is imported.
    # `own_names` needs the parsed file only.
    with importing_nothing():
        names = [] if space is None else [name for _, name in own_names(load_spec(space, overrides(set)))]
    if names:
        raise SweeperError(
            f"{space} names custom code: {', '.join(names)}",
            "tools do not run custom code; ask a person to run `sweeper plan`",
        )


def serve_tools(output: str, commands: Mapping[str, Callable[..., object]], *, allow_run: bool) -> None:
    """Serve tools until the agent disconnects.

    Args:
        output: Folder or store of the sweeps.
        commands: Tool name → function.
        allow_run: Also offer `run`, which starts sweeps.
    """

    def run(space: str, name: str, settings: list[str] | None = None) -> str:
        """Start a sweep in a new process, with settings such as samples=12. Follow it with `status`."""
        words = ["run", space, "--name", name, "--output", output, *(f"--set={text}" for text in settings or [])]
        # In a new session the sweep survives the end of the agent's terminal, which also ends this server.
        process = subprocess.Popen(
            python_module("sweeper", *words), start_new_session=True, env=python_environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return f"started {name}, process {process.pid}"

    server = MCPServer("calibration-sweeper", log_level="WARNING")
    for name, function in commands.items():
        server.add_tool(tool(function, output), name)
    if allow_run:
        server.add_tool(run)
    server.run("stdio")

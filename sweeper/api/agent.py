"""An MCP server (Model Context Protocol, over standard input and output) that offers commands as tools to an agent.

Tools are generated from the commands' functions. A call runs in a process of its own with a limit of memory, because a
query can ask for any amount. Tools read sweeps of one folder, and search spaces and data below the working directory.
"""

from __future__ import annotations

import functools
import inspect
import json
import multiprocessing
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import anyio.to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from pydantic import ConfigDict, TypeAdapter

from search_spaces import FOLDER, locate
from sweeper.api import function_of
from sweeper.api.arguments import HANDED, Settings, hints_of, overrides, validated
from sweeper.api.printing import BAD_INPUT
from sweeper.core.display import CommandResult, as_data
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.core.processes import python_environment, python_module
from sweeper.space.loading import load_spec
from sweeper.space.user_code import own_names
from sweeper.storage.lease import holder
from sweeper.storage.lookup import is_sweep
from sweeper.storage.places import DRIVING, place_of
from trainables.files.container import fullest_memory
from trainables.files.stores.base import StoreError, is_store_address
from trainables.registry import importing_nothing
from trainables.registry.names import hint

#: Tool → command. With `--allow-run` there are also `stop` and `run`.
READING = {name: name for name in ("plan", "status", "show", "compare", "ensemble", "conformal")} | {
    "results": "results_"
}

#: Parameters that tools omit: the server sets the output, and a tool writes no file, never waits and joins no cluster.
LEFT_OUT = {"output", "to", "page", "picture", "address", "slurm", "slurm_file", "cluster", "watch"}

#: Parameters whose texts are no names; `require_own` checks the first two itself.
FREE = {"space", "set", "sql"}

#: Calls that run at once, and the share of the machine's memory that each may take.
CALLS, SHARE = 3, 0.25

#: Most bytes of an answer; an agent cannot read more, and the server would have to hold it.
LONGEST_ANSWER = 4 * 2**20

#: Seconds that `run` waits for the sweep to begin; loading large data takes longer.
PATIENCE = 60.0

_PROCESSES = multiprocessing.get_context("forkserver")


def serve_tools(output: str, *, allow_run: bool) -> None:
    """Serve tools until the agent disconnects.

    Args:
        output: Folder or store of the sweeps; the agent cannot choose another.
        allow_run: Also offer `run` and `stop`, which start and stop sweeps.
    """
    # The fork server inherits this environment, so it imports no module from the working directory.
    os.environ.update(python_environment())
    modules = {function_of(command).__module__ for command in READING.values()}
    _PROCESSES.set_forkserver_preload([__name__, *modules, "sweeper.results.listing"])
    commands = READING | ({"stop": "stop"} if allow_run else {})
    functions = {name: tool_function(function_of(command), output) for name, command in commands.items()}
    calls: dict[str, Callable[..., dict[str, Any]]] = {
        name: functools.partial(in_own_process, command, output) for name, command in commands.items()
    }
    if allow_run:
        functions["run"] = tool_function(start_sweep, output, {"space"})
        calls["run"] = lambda given: {"answer": functions["run"](**given), "notes": []}
    tools = [Tool(name=name, description=inspect.getdoc(f), input_schema=schema_of(f)) for name, f in functions.items()]
    at_once = anyio.CapacityLimiter(CALLS)

    async def list_tools(_context: object, _request: object) -> ListToolsResult:
        return ListToolsResult(tools=tools)

    async def call_tool(_context: object, request: Any) -> CallToolResult:
        try:
            if request.name not in calls:
                raise SweeperError(f"there is no tool {request.name!r}", hint(request.name, calls))
            answer = await anyio.to_thread.run_sync(calls[request.name], request.arguments or {}, limiter=at_once)
        except (SweeperError, StoreError) as error:
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)
        return CallToolResult(content=[TextContent(text=json.dumps(answer))], structured_content=answer)

    async def serve() -> None:
        server = Server("calibration-sweeper", on_list_tools=list_tools, on_call_tool=call_tool)
        async with stdio_server() as (received, sent):
            await server.run(received, sent, server.create_initialization_options())

    anyio.run(serve)


def tool_function(function: Callable[..., object], output: str, free: Set[str] = frozenset()) -> Callable[..., object]:
    """Return a command's function as a tool: with the parameters that an agent can give, by name, and all checked.

    Args:
        function: Function of a command.
        output: Folder or store of the sweeps.
        free: Parameters that may lead anywhere.
    """
    taken, hints = inspect.signature(function).parameters, hints_of(function)
    fixed = {"output": output} if "output" in taken else {}
    parameters = [
        parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY)
        for name, parameter in taken.items()
        if name not in LEFT_OUT and HANDED not in getattr(hints[name], "__metadata__", ())
    ]

    @functools.wraps(function)
    def call(**given: Any) -> object:
        require_own({name: value for name, value in given.items() if name not in free}, output)
        return function(**given, **fixed)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return validated(call)


def schema_of(function: Any) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments: types, bounds, defaults; it allows no others."""
    return TypeAdapter(function, config=ConfigDict(arbitrary_types_allowed=True)).json_schema()


def in_own_process(command: str, output: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Run a command in a new process and return its answer as data. Raises SweeperError as the command does."""
    with ProcessPoolExecutor(1, _PROCESSES, _limit_this_process) as pool:
        try:
            answer: dict[str, Any] = json.loads(pool.submit(_answer, command, output, given).result())
        except BrokenProcessPool as error:
            raise SweeperError("the command's process died, probably for lack of memory", "ask for less") from error
    return answer


def _limit_this_process() -> None:
    # Standard output carries the protocol: anything else printed there would break the connection.
    os.dup2(2, 1)
    most, (now, hard) = int(fullest_memory()[1] * SHARE), resource.getrlimit(resource.RLIMIT_DATA)
    # Unlike RLIMIT_AS, this limit does not count address space that CUDA reserves and never uses.
    resource.setrlimit(resource.RLIMIT_DATA, (most if now == resource.RLIM_INFINITY else min(most, now), hard))


def _answer(command: str, output: str, given: Mapping[str, Any]) -> str:
    try:
        answer = tool_function(function_of(command), output)(**given)
    except (SweeperError, StoreError) as error:
        raise SweeperError(str(error)) from None  # survives the way to the server, whatever its class
    except MemoryError:
        raise SweeperError("the command needs more memory than it may take", "ask for less") from None
    shown = answer if isinstance(answer, CommandResult) else CommandResult(answer)
    notes = [*shown.notes, *([str(shown.fault)] if shown.fault is not None else [])]
    text = json.dumps({"answer": as_data(answer), "notes": notes})
    if len(text) > LONGEST_ANSWER:
        rule = f"the answer has {len(text) / 2**20:.1f} MiB, and at most {LONGEST_ANSWER >> 20} MiB are sent"
        raise SweeperError(rule, "ask for fewer rows or columns, or aggregate them in a query")
    return text


def require_own(given: Mapping[str, Any], output: str) -> None:
    """Raise SweeperError for an argument that leads out of the output or the working directory, or to code."""
    for name, value in given.items():
        texts = [] if name in FREE else [value] if isinstance(value, str) else value
        for text in texts if isinstance(texts, Sequence) else []:
            if isinstance(text, str) and not _is_own_name(text, output):
                raise SweeperError(f"{name}: {text!r} is not a name in {output}", "tools read no other folder")
    if given.get("space") is not None:
        require_own_space(given["space"], given.get("set"))


def _is_own_name(text: str, output: str) -> bool:
    if text in ("", "..") or Path(text).name != text:
        return False
    # `find_sweep` also looks for a folder of that name in the working directory.
    return is_store_address(output) or not is_sweep(Path(text)) or is_sweep(Path(output) / text)


def require_own_space(space: str | Path | Mapping[str, Any], settings: Any = None) -> None:
    """Raise SweeperError if a search space is a foreign file, or names foreign files or code; import nothing.

    Errors of a search space and of a table quote the file's contents, and importing a component runs its module.
    """
    if not isinstance(space, Mapping) and not (_is_own_file(locate(space)) or locate(space).is_relative_to(FOLDER)):
        rule = f"{str(space)!r} is neither a shipped search space nor a .yaml file below {Path.cwd()}"
        raise SweeperError(rule, "give a name that `sweeper spaces` lists, such a file, or the space's values")
    with importing_nothing():
        spec = load_spec(space, overrides(settings))
        code = [name for _, name in own_names(spec)]
    if code:
        remedy = "tools do not run custom code; ask a person to run `sweeper plan`"
        raise SweeperError(f"the search space names custom code: {', '.join(code)}", remedy)
    values = {key: value for key, value in spec.resolved().items() if key != "header"}
    if foreign := [text for text in _texts(values) if not _is_below(Path(text))]:
        raise SweeperError(f"{foreign[0]!r} lies outside {Path.cwd()}", "tools read no data elsewhere")


def _is_own_file(path: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.parts if part != "..")
    return path.suffix in (".yaml", ".yml") and not is_hidden and _is_below(path)


def _is_below(path: Path) -> bool:
    try:
        return Path(os.path.realpath(path.expanduser())).is_relative_to(Path.cwd())
    except (ValueError, RuntimeError):  # a NUL, or an unknown user's home
        return False


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def start_sweep(space: str, name: str, *, set: Settings = None, output: str = "") -> str:
    """Start a sweep in a new process, with settings such as samples=12. Follow it with `status`."""
    options = [f"--name={name}", f"--output={output}", *(f"--set={setting}" for setting in overrides(set))]
    place = place_of(output, DRIVING)
    store = None if place.store is None else place.store.child(name)
    lease = SweepPaths(place.folder / name).lease
    with tempfile.TemporaryFile() as said:
        # In a new session the sweep survives the end of the agent's terminal, which also ends this server.
        process = subprocess.Popen(
            python_module("sweeper", "run", f"--space={space}", *options), start_new_session=True,
            env=python_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
        latest = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < latest:
            if (holder(lease, store) or {}).get("pid") == process.pid:
                return f"started {name}, process {process.pid}"
            time.sleep(0.1)
        said.seek(0)
        if process.returncode == BAD_INPUT:
            raise SweeperError(said.read().decode(errors="replace").removeprefix("error: ").strip())
    if process.returncode is not None:
        return f"{name} has ended with exit status {process.returncode}"
    return f"process {process.pid} still prepares its data; `status` shows {name} once it has started"

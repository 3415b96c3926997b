"""Tools for agents over the Model Context Protocol: what commands answer, and sweeps within a grant of hours.

An agent names sweeps of one output, and search spaces that ship or lie in the server's working folder; it brings no
code, reads no other file, and every call is noted with its author.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from sweeper.core.errors import SweeperError
from sweeper.core.ids import is_sweep_name
from sweeper.core.processes import at_death, python_environment, python_module
from sweeper.reporting.html import json_text
from sweeper.results.queries import fence
from sweeper.space.loading import load_spec
from sweeper.space.spec import SweepSpec
from sweeper.space.user_code import own_names
from sweeper.steering.ledger import AUTHOR
from sweeper.text.display import as_text
from trainables.files.stores.base import StoreError, is_store_address
from trainables.registry import importing_nothing

#: A run is interrupted so long before its hours end, and killed KILL_SECONDS before.
GRACE_SECONDS = 60.0

KILL_SECONDS = 5.0

SUPERVISE = "import sys; from sweeper.serving.agent import supervise; supervise(*sys.argv[1:])"

Entry = dict[str, Any]


class Grant:
    """The hours that one author's sweeps may take in all, counted over every server that was started with this file.

    The file's lines, in the folder of the sweeps, only grow. A run takes its hours before it starts, and gives back
    what it did not need when it has ended. A process of its own interrupts it in time, whatever becomes of the server.
    """

    def __init__(self, file: Path, author: str, hours: float) -> None:
        """Count what `author` may take of `hours`."""
        self._file, self.author, self.hours = file, author, hours

    def note(self, make: Callable[[list[Entry]], Entry]) -> Entry:
        """Append what `make` returns of the author's entries so far; others wait meanwhile. Raises what it raises."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a+", encoding="utf-8") as lines:
            fcntl.flock(lines, fcntl.LOCK_EX)
            lines.seek(0)
            text = lines.read()
            said, now = make(self._own(text)), datetime.now(UTC).isoformat(timespec="seconds")
            made = {"at": now, "author": self.author, **said}
            ends = not text or text.endswith("\n")  # a power cut may leave half a line
            lines.write(("" if ends else "\n") + json.dumps(made, default=str) + "\n")
            lines.flush()
            os.fsync(lines.fileno())
        return made

    def entries(self) -> list[Entry]:
        """Return what the author did so far."""
        return self._own(self._file.read_text("utf-8")) if self._file.exists() else []

    def _own(self, text: str) -> list[Entry]:
        found = []
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [entry for entry in found if entry["author"] == self.author]

    def left(self, entries: Sequence[Entry]) -> float:
        """Return the hours that are left: a run that has not ended counts with all that it was given."""
        ended = {entry["run"]: entry["took"] for entry in entries if "took" in entry}
        given = {entry["run"]: entry["given"] for entry in entries if "given" in entry}
        return self.hours - float(sum((given | ended).values()))

    def start(self, name: str, hours: float, command: Sequence[str]) -> None:
        """Start a command that ends within `hours`.

        Raises:
            SweeperError: they are more than is left, or too few.
        """
        least = 2 * GRACE_SECONDS / 3600

        def take(entries: list[Entry]) -> Entry:
            left = self.left(entries)
            if not least <= hours <= left:
                raise SweeperError(
                    f"{hours:g} hours were asked for, and {max(0.0, left):.3g} of the {self.hours:g} granted are left",
                    f"ask for {least:.2g} hours at least and for no more than are left; whoever started the server "
                    "can grant more with --grant",
                )
            return {"run": f"{name} {sum('given' in each for each in entries) + 1}", "sweep": name, "given": hours}

        run = self.note(take)["run"]
        subprocess.Popen(
            [sys.executable, "-P", "-c", SUPERVISE, str(self._file), self.author, run, str(hours * 3600), *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=python_environment(),
        )  # fmt: skip


def supervise(file: str, author: str, run: str, seconds: str, *command: str) -> None:
    """Run a command, end it in time, and note how long it took."""
    began, limit = time.monotonic(), float(seconds) - GRACE_SECONDS
    ended = ["timeout", "--signal=INT", f"--kill-after={GRACE_SECONDS - KILL_SECONDS}", str(limit), *command]
    process = subprocess.Popen(
        ended, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    with at_death('kill -INT "$1"', str(process.pid)):
        said = process.communicate()[1]
    took = (time.monotonic() - began) / 3600
    last = said.strip().rpartition("\n")[2]
    Grant(Path(file), author, 0).note(lambda _: {"run": run, "took": took, "exit": process.returncode, "said": last})


#: Of an answer: an agent that needs more should aggregate.
MOST_ROWS = 200

JOURNAL = "agents.jsonl"

INSTRUCTIONS = """Sweeps over losses and networks of classifiers, with calibration measured. Ask `plan` before `run`:
it says how long a sweep takes, and how many hours of your grant are left. What is best in a table may be chance: say
what `compare`, `claims` and the intervals say, and `undecided` where they do."""

Answer = dict[str, Any]


class Tools:
    """The tools of one output, for one author."""

    def __init__(self, output: str, grant: Grant, commands: Mapping[str, Callable[..., Any]]) -> None:
        """Offer `commands`, functions by their names, on the sweeps in `output`."""
        self._output, self._grant, self._commands = output, grant, commands

    def plan(self, space: str, settings: list[str] | None = None) -> Answer:
        """Estimate a sweep's trials, time and cost before training: `settings` are texts such as samples=12."""
        checked(space, settings or [])
        planned = self._commands["plan"](space, set=settings or [])
        return {"plan": planned.json, "text": as_text(planned.look), "hours_left": self._left()}

    def run(self, space: str, name: str, hours: float, settings: list[str] | None = None) -> Answer:
        """Start a sweep that ends within so many hours, taken from the grant. Follow it with `status`."""
        if is_store_address(self._output):
            raise SweeperError("sweeps run into a folder of this machine only", "start the server with a folder")
        spec = checked(space, settings or [])
        limit = min(0.9 * hours, (spec.budget.wall_hours if spec.budget else None) or hours)  # trials end at a rung
        chosen = [part for text in (*(settings or []), f"budget.wall_hours={limit}") for part in ("--set", text)]
        where = ["--name", named(name), "--output", self._output]
        self._grant.start(name, hours, python_module("sweeper", "run", space, *where, *chosen))
        return {"started": name, "hours_left": self._left()}

    def status(self, name: str | None = None) -> Answer:
        """Say where sweeps stand, what the grant's runs took, and how many hours are left."""
        found = self._commands["status"](None if name is None else named(name), output=self._output)
        runs = [each for each in self._grant.entries() if "given" in each or "took" in each]
        return {"sweeps": [asdict(each) for each in found.value], "runs": runs, "hours_left": self._left()}

    def sql(self, names: list[str], query: str) -> Answer:
        """Return rows of a reading SQL query over the tables trials, epochs, evaluations, decisions and final."""
        found = self._commands["results"]([*map(named, names)], sql=query, output=self._output)
        rows, notes = found.value.slice(0, MOST_ROWS).to_pylist(), [*found.notes]
        if found.value.num_rows > MOST_ROWS:
            notes.append(f"the first {MOST_ROWS} of {found.value.num_rows:,} rows: aggregate, or add LIMIT and OFFSET")
        return {"rows": rows, "notes": notes}

    def compare(self, first: str, second: str) -> Answer:
        """Compare two sweeps over their common configurations: differences with intervals and corrected p."""
        found = self._commands["compare"](named(first), named(second), output=self._output)
        return {"text": as_text(found.look), "notes": [*found.notes]}

    def claims(self, name: str, claim: list[str] | None = None) -> Answer:
        """Judge claims of papers on a sweep by rules fixed in advance: holds, does not hold or undecided."""
        return {"verdicts": self._commands["claims"](named(name), claim=claim or [], output=self._output).json}

    def steer(
        self,
        name: str,
        verb: str,
        what: list[str] | None = None,
        where: str | None = None,
        samples: int | None = None,
        replicates: int | None = None,
    ) -> Answer:
        """Steer a sweep of yours that runs: stop (where: SQL over trials), extend (samples), boost (what: a trial;
        replicates), narrow (what: space.loss.focal.gamma=[1,4]), clone (what: a trial, loss.gamma=3) or budget.
        """
        entries = self._grant.entries()
        ended = {each["run"] for each in entries if "took" in each}
        if not any(each.get("sweep") == name and each["run"] not in ended for each in entries):
            raise SweeperError(f"{name!r} is not a sweep that runs on your grant", "steer one that you started")
        given = {"where": where, "samples": samples, "replicates": replicates, "output": self._output}
        return {"text": self._commands["steer"](name, verb, what or [], **given)}

    def _left(self) -> float:
        return self._grant.left(self._grant.entries())

    def noted(self, tool: Callable[..., Answer]) -> Callable[..., Answer]:
        """Return a tool whose calls are noted with their author, and whose errors are sentences."""

        @functools.wraps(tool)
        def call(**given: Any) -> Answer:
            entry = {"tool": tool.__name__, "arguments": given}
            try:
                with contextlib.redirect_stdout(sys.stderr):  # standard output is the protocol's
                    answer: Answer = json.loads(json_text(tool(**given)))
            except (SweeperError, StoreError) as error:
                refused = {**entry, "refused": str(error)}
                self._grant.note(lambda _: refused)
                raise ToolError(str(error)) from error
            self._grant.note(lambda _: entry)
            return answer

        return call


def named(name: str) -> str:
    """Return a sweep's name. Raises SweeperError for a path, or an address."""
    if not is_sweep_name(name):
        raise SweeperError(f"{name!r} is not a sweep's name", "give a name that `status` lists")
    return name


def checked(space: str, settings: list[str]) -> SweepSpec:
    """Return a search space that an agent may plan and run; none of its names is imported.

    Raises:
        SweeperError: it lies elsewhere than in the working folder, names code of somebody's own, or is wrong.
    """
    if not (is_sweep_name(space) or Path(space).resolve().is_relative_to(Path.cwd().resolve())):
        raise SweeperError(f"{space} is not in the server's working folder", "name a space that ships, or one there")
    with importing_nothing():
        spec = load_spec(space, settings)
        own = [name for _, name in own_names(spec)]
    if own:
        raise SweeperError(
            f"an agent's sweep runs no code of its own: {', '.join(own)}", "leave it out, or have a person run it"
        )
    return spec


def serve_tools(output: str, author: str, hours: float, commands: Mapping[str, Callable[..., Any]]) -> None:
    """Answer an agent on standard input and output until it hangs up.

    Args:
        output: a folder or a store.
        author: whose grant it is.
        hours: granted in all.
        commands: `plan`, `steer`, `status`, `results`, `compare` and `claims`.
    """
    fence()
    # Who looks at test data, steers and runs is in ledger, journal and manifest.
    os.environ |= {AUTHOR: author, "SWEEPER_SUBMITTER": author}
    journal = (Path.cwd() if is_store_address(output) else Path(output)) / JOURNAL
    tools = Tools(output, Grant(journal, author, hours), commands)
    server = MCPServer("calibration-sweeper", instructions=INSTRUCTIONS, log_level="WARNING")
    for tool in (tools.plan, tools.run, tools.status, tools.steer, tools.sql, tools.compare, tools.claims):
        server.add_tool(tools.noted(tool))
    server.run("stdio")

"""An agent's session by a real client: what it reads, what it is refused, and a sweep that it starts."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patient
from tests.sweeper.synthetic_sweep import write_sweep

pytestmark = pytest.mark.integration

READ = {"plan", "status", "results", "show", "compare", "ensemble", "conformal"}


def _client(folder: Path, *options: str) -> Any:
    mcp = pytest.importorskip("mcp")  # a second, which only these tests shall wait
    arguments = ["-m", "sweeper", "mcp", "--output", str(folder / "results"), *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return mcp.Client(mcp.StdioServerParameters(command=sys.executable, args=arguments, env=environment, cwd=folder))


async def _call(client: Any, tool: str, **given: Any) -> tuple[bool, Any]:
    """Return whether a tool refused, and what it said."""
    answer = await client.call_tool(tool, given)
    text = answer.content[0].text
    return bool(answer.is_error), text if answer.is_error else json.loads(text)


def test_an_agent_reads_and_is_refused_what_it_may_not(tmp_path):
    write_sweep(tmp_path / "results" / "first", space="gamma", configurations=4, samples=30, failures=0)
    space = "{dataset: digits, scheduler: {name: asha, max_epochs: 3}, samples: 2, "
    space += "space: {loss: 'this:That', architecture: mlp, optimizer: sgd}}"
    (tmp_path / "own.yaml").write_text(space)

    async def session() -> None:
        async with _client(tmp_path) as client:
            listed = {tool.name: tool.input_schema["properties"] for tool in (await client.list_tools()).tools}
            assert {*listed} == READ, "without --allow-run nothing starts"
            assert not {"output", "to", "page"} & {name for properties in listed.values() for name in properties}
            failed, rows = await _call(client, "results", name="first", sql="SELECT count(*) AS n FROM trials")
            assert not failed and rows["answer"] == [{"n": 8}]
            failed, planned = await _call(client, "plan", space="quickstart", set=["samples=4"])
            assert not failed and planned["answer"]["trials"] == 4
            failed, shown = await _call(client, "show", name="first")
            assert not failed and shown["answer"]
            failed, compared = await _call(client, "compare", name="first", first="first")
            assert not failed and compared["answer"]["sweeps"]["names"] == ["first", "first"]
            refusals = [
                ("results", {"name": "first", "sql": "SELECT * FROM read_text('/etc/passwd')"}, "disabled"),
                ("results", {"name": "first", "sql": "SET enable_external_access = true"}, "not read-only"),
                ("plan", {"space": "own.yaml"}, "this:That"),
                ("compare", {"name": "first", "first": "none"}, "there is no sweep 'none'"),
            ]
            for tool, given, why in refusals:
                failed, said = await _call(client, tool, **given)
                assert failed and why in said, (tool, given, said)

    asyncio.run(session())


def test_an_agent_that_may_starts_a_sweep(tmp_path):
    settings = ["samples=4", "scheduler.max_epochs=3", "scheduler.grace_epochs=1", "evaluation.curvature=false"]
    settings += ["replicates=1", "which=[]"]

    async def session() -> None:
        async with _client(tmp_path, "--allow-run") as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == READ | {"run", "stop"}
            await client.call_tool("run", {"space": "quickstart", "name": "night", "settings": settings})
            for _ in range(int(patient(120))):
                failed, answer = await _call(client, "status", name="night")
                if not failed and answer["answer"][0]["state"] == "finished":
                    break
                await asyncio.sleep(1)
            assert not failed and answer["answer"][0]["state"] == "finished", answer

    asyncio.run(session())

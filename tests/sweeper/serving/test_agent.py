"""An agent's session by a real client: from a question to a priced plan, a sweep within the grant, and the answer."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

mcp = pytest.importorskip("mcp")

from tests.patience import patient  # noqa: E402
from tests.sweeper.synthetic_sweep import write_sweep  # noqa: E402


def _server(folder: Path, hours: float) -> Any:
    arguments = ["-m", "sweeper", "mcp", "--output", str(folder / "results"), "--grant", str(hours), "--author", "ada"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return mcp.StdioServerParameters(command=sys.executable, args=arguments, env=environment, cwd=folder)


async def _call(client: Any, tool: str, **given: Any) -> tuple[bool, Any]:
    """Return whether a tool refused, and what it said."""
    found = await client.call_tool(tool, given)
    text = found.content[0].text
    return bool(found.is_error), text if found.is_error else json.loads(text)


@pytest.mark.integration
def test_an_agent_reads_and_is_refused_what_it_may_not(tmp_path):
    write_sweep(tmp_path / "results" / "first", space="gamma", configurations=4, samples=30, failures=0)
    space = "{dataset: digits, scheduler: {name: asha, max_epochs: 3}, loop: 'this:That', space: {}}"
    (tmp_path / "own.yaml").write_text(space)

    async def session() -> None:
        async with mcp.Client(_server(tmp_path, 0.5)) as client:
            tools = {each.name for each in (await client.list_tools()).tools}
            assert tools >= {"plan", "run", "steer", "status", "sql", "compare", "claims"}
            failed, found = await _call(client, "sql", names=["first"], query="SELECT count(*) AS n FROM trials")
            assert not failed and found["rows"] == [{"n": 8}]
            query = "SELECT a.trial FROM epochs AS a, epochs AS b"
            failed, found = await _call(client, "sql", names=["first"], query=query)
            assert len(found["rows"]) == 200 and any("the first 200 of" in each for each in found["notes"])
            refusals = [
                ("sql", {"names": ["first"], "query": "SELECT * FROM read_text('/etc/passwd')"}, "disabled"),
                ("sql", {"names": ["first"], "query": "SET enable_external_access = true"}, "not read-only"),
                ("sql", {"names": ["../first"], "query": "SELECT 1"}, "not a sweep's name"),
                ("plan", {"space": "/etc/passwd"}, "not in the server's working folder"),
                ("plan", {"space": "own.yaml"}, "runs no code of its own"),
                ("run", {"space": "quickstart", "name": "x", "hours": 0.6}, "0.5 of the 0.5 granted are left"),
                ("run", {"space": "quickstart", "name": "../x", "hours": 0.4}, "not a sweep's name"),
                ("compare", {"first": "first", "second": "none"}, "there is no sweep 'none'"),
                ("steer", {"name": "first", "verb": "extend", "samples": 99}, "not a sweep that runs on your grant"),
            ]
            for tool, given, why in refusals:
                failed, said = await _call(client, tool, **given)
                assert failed and why in said, (tool, given, said)

    asyncio.run(session())
    noted = [json.loads(line) for line in (tmp_path / "results" / "agents.jsonl").read_text().splitlines()]
    assert len(noted) == 11 and {each["author"] for each in noted} == {"ada"}
    assert sum("refused" in each for each in noted) == 9


@pytest.mark.integration
def test_from_a_question_to_a_priced_plan_to_an_answer(tmp_path):
    settings = ["samples=4", "scheduler.max_epochs=3", "scheduler.grace_epochs=1", "evaluation.curvature=false"]

    async def session() -> None:
        async with mcp.Client(_server(tmp_path, 0.2)) as client:
            failed, planned = await _call(client, "plan", space="quickstart", settings=settings)
            assert not failed and planned["plan"]["trials"] == 4 and planned["hours_left"] == 0.2
            failed, said = await _call(client, "run", space="quickstart", name="night", hours=0.15, settings=settings)
            assert not failed and said["hours_left"] == pytest.approx(0.05)
            failed, said = await _call(client, "run", space="quickstart", name="more", hours=0.1, settings=settings)
            assert failed and "are left" in said, "what runs counts with all that it was given"

    async def later() -> None:
        async with mcp.Client(_server(tmp_path, 0.2)) as client:  # the first server is gone; its sweep goes on
            for _ in range(int(patient(120))):
                failed, found = await _call(client, "status")
                if any("took" in each for each in found["runs"]):
                    break
                await asyncio.sleep(1)
            (sweep,) = found["sweeps"]
            manifest = json.loads((tmp_path / "results" / "night" / "manifest.json").read_text())
            assert manifest["submitter"] == "ada"
            assert sweep["state"] == "finished" and 0.1 < found["hours_left"] < 0.2, found
            query = "SELECT config_loss_name, avg(nll) AS nll FROM final WHERE split = 'test' GROUP BY 1 ORDER BY 2"
            failed, answer = await _call(client, "sql", names=["night"], query=query)
            assert not failed and answer["rows"][0]["nll"] > 0
            failed, verdicts = await _call(
                client, "claims", name="night", claim=["temperature_falls_with_training_gamma"]
            )
            assert not failed and verdicts["verdicts"][0]["verdict"]

    asyncio.run(session())
    asyncio.run(later())

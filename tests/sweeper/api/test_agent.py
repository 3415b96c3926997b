"""An agent's tools: what they refuse; and sessions by a real client: answers, refusals, and a sweep that it starts."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.api import function_of
from sweeper.core.errors import InvalidArgumentsError, SweeperError
from tests.patience import patient
from tests.sweeper.synthetic_sweep import write_sweep
from trainables.files.container import fullest_memory

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


@pytest.fixture(scope="module")
def agent() -> Any:
    return pytest.importorskip("sweeper.api.agent")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Give a server's output, with a sweep beside it and one in the working directory; return the output."""
    for place in ("results/own", "elsewhere/other", "here"):
        (tmp_path / place / "tables").mkdir(parents=True)
    (tmp_path / "results" / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "results")


@pytest.mark.parametrize("name", ["elsewhere/other", "../elsewhere/other", "here", ".", "..", "", "s3://bucket/sweep"])
@pytest.mark.parametrize(("command", "key"), [("results_", "name"), ("compare", "first"), ("compare", "more")])
def test_a_tool_reads_no_other_folder(agent, folders, command, key, name):
    tool = agent.tool_function(function_of(command), folders)
    given = {"name": "own"} | {key: [name] if key == "more" else name}
    with pytest.raises(SweeperError) as caught:
        tool(**given)
    assert type(caught.value) is SweeperError and caught.value.message.startswith(f"{key}: {name!r}")
    agent.require_own({"name": "own", "first": "my.module:Loss", "second": "c00001"}, folders)


@pytest.mark.parametrize(
    ("space", "settings"),
    [
        ("elsewhere/secret.yaml", []),
        ("notes.txt", []),
        (".hidden/keys.yaml", []),
        ("link.yaml", []),
        ("quickstart", ["dataset.name=table", "dataset.file={outside}", "dataset.target=b"]),
        ("quickstart", ["dataset.name=table", "dataset.file=../outside.csv", "dataset.target=b"]),
        ("quickstart", ["dataset.name=table", "dataset.file=~/outside.csv", "dataset.target=b"]),
        ("quickstart", ["dataset.name=table", "dataset.file=link.csv", "dataset.target=b"]),
    ],
)
def test_a_plan_quotes_no_other_file(agent, tmp_path, monkeypatch, space, settings):
    inside, outside = tmp_path / "inside", tmp_path / "outside.csv"
    for path in (outside, inside / "notes.txt", inside / ".hidden/keys.yaml", tmp_path / "elsewhere/secret.yaml"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("sesame: 1\n")
    for name in ("link.yaml", "link.csv"):
        (inside / name).symlink_to(outside)
    monkeypatch.chdir(inside)
    named = space if not space.startswith("elsewhere") else str(tmp_path / space)
    with pytest.raises(SweeperError) as caught:
        agent.require_own_space(named, [setting.format(outside=outside) for setting in settings])
    assert type(caught.value) is SweeperError and "sesame" not in str(caught.value)


def test_a_tool_plans_what_ships_and_what_lies_below_the_working_directory(agent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("a,b\n")
    settings = ["dataset.name=table", "dataset.file=data.csv", "dataset.target=b"]
    agent.require_own_space("tutorials/fine_tuning_few_labels")
    agent.require_own_space("quickstart", settings)
    with pytest.raises(SweeperError, match=r"this\.that:Loss"):
        agent.require_own_space("quickstart", ["space.loss=this.that:Loss", "which=[]"])


def test_a_tool_has_a_commands_parameters_and_bounds_and_no_others(agent):
    tools = {name: agent.tool_function(function_of(command), "results") for name, command in agent.READING.items()}
    schemas = {name: agent.schema_of(tool) for name, tool in tools.items()}
    assert not any(schema["additionalProperties"] for schema in schemas.values())
    left = {name for schema in schemas.values() for name in schema["properties"]}
    assert not left & {"output", "to", "page", "picture", "form", "progress"}
    assert schemas["ensemble"]["properties"]["size"].items() >= {"minimum": 1, "maximum": 1000}.items()
    for tool, given, wrong in [
        ("conformal", {"name": "x", "alhpa": 0.01, "alpha": 2}, {"alhpa", "alpha"}),
        ("status", {"output": "/"}, {"output"}),
        ("ensemble", {"size": 0}, {"name", "size"}),
    ]:
        with pytest.raises(InvalidArgumentsError) as caught:
            tools[tool](**given)
        assert {fault.path for fault in caught.value.faults} == wrong


@pytest.mark.integration
def test_an_agent_reads_and_is_refused_what_it_may_not(tmp_path):
    write_sweep(tmp_path / "results" / "first", space="gamma", configurations=4, samples=30, failures=0)
    # More than a call may take, in one allocation that fails before it is used; the machine has so much.
    numbers = int(fullest_memory()[1] * 1.5 * pytest.importorskip("sweeper.api.agent").SHARE) // 8
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
                ("conformal", {"name": "first", "alhpa": 0.01}, "alhpa: unknown argument"),
                ("results", {"name": "first", "sql": "SELECT repeat('a', 5000000)"}, "4.8 MiB"),
                ("results", {"name": "first", "sql": f"SELECT len(range({numbers}))"}, "Out of Memory"),
                ("nothing", {}, "there is no tool"),
            ]
            for tool, given, why in refusals:
                failed, said = await _call(client, tool, **given)
                assert failed and why in said, (tool, given, said)

    asyncio.run(session())


@pytest.mark.integration
def test_an_agent_that_may_starts_a_sweep(tmp_path):
    write_sweep(tmp_path / "results" / "taken", space="gamma", configurations=4, samples=30, failures=0)
    settings = ["samples=4", "scheduler.max_epochs=3", "scheduler.grace_epochs=1", "evaluation.curvature=false"]
    settings += ["replicates=1", "which=[]"]

    async def session() -> None:
        async with _client(tmp_path, "--allow-run") as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == READ | {"run", "stop"}
            impossible = [("quickstat", "one", []), ("quickstart", "taken", []), ("quickstart", "../one", [])]
            for space, name, given in [*impossible, ("quickstart", "one", ["samples=-1"]), ("--help", "one", [])]:
                failed, said = await _call(client, "run", space=space, name=name, set=given)
                assert failed, (space, name, given, said)
            failed, answer = await _call(client, "run", space="quickstart", name="night", set=settings)
            assert not failed and (tmp_path / "results" / "night").is_dir(), answer
            for _ in range(int(patient(120))):
                failed, answer = await _call(client, "status", name="night")
                if not failed and answer["answer"][0]["state"] == "finished":
                    break
                await asyncio.sleep(1)
            assert not failed and answer["answer"][0]["state"] == "finished", answer

    asyncio.run(session())

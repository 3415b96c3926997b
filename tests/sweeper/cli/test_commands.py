"""A command is made of one function: its signature gives options, types and defaults, its docstring the help."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from sweeper.api import COMMANDS
from sweeper.api.arguments import CommandOption, Mlflow, Name, Output, RunsOn, Say, Settings, Several
from sweeper.cli.main import app, argument_texts, command
from sweeper.cli.printing import GIVEN, display
from sweeper.text.display import Shown

PROGRAM = typer.main.get_command(app).commands  # type: ignore[attr-defined]
LISTED = PROGRAM | {name: made for each in PROGRAM.values() for name, made in getattr(each, "commands", {}).items()}
PRINTING = {"timings", "form", "wait"}
"""Options of what prints answers."""


def example(
    name: Name,
    to: Annotated[str | Path, CommandOption(("--to",))],
    more: Sequence[int] = (),
    *,
    set: Settings = None,
    output: Output = None,
    mlflow: Mlflow = True,
    executor: RunsOn = "auto",
    size: Annotated[int, CommandOption(least=2)] = 3,
    loss: Several = (),
    fast: bool = False,
    say: Say = lambda line: None,
) -> Shown[dict[str, Any]]:
    """Do what is asked. And more.

    Nothing else.

    Args:
        to: File to write; its folder
            is created.
        more: Numbers. (default: none)
        size: How many.
        loss: Loss family; repeatable. (default: all)
        fast: Hurry.

    Raises:
        SweeperError: never.
    """
    values = {key: value for key, value in locals().items() if key != "say"}
    say("said")
    return Shown(values, "done", notes=["noted"], complete=not fast)


def typed(*words: str) -> tuple[int, str, dict[str, Any]]:
    answers: list[Shown[dict[str, Any]]] = []

    def keep(found: Shown[dict[str, Any]], given: dict[str, Any], *, loud: bool = False) -> None:
        """Print.

        Args:
            loud: Shout.
        """
        answers.append(found)
        display(found, given)

    program = typer.Typer()
    program.command()(command(example, keep))
    done = CliRunner().invoke(program, list(words))
    return done.exit_code, done.output, answers[0].value if answers else {}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SWEEPER_OUTPUT", "SWEEPER_EXECUTOR", "MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)


def test_a_function_gets_what_is_typed() -> None:
    code, said, values = typed("mine", "--to", "f.txt")
    assert (code, said.split()) == (0, ["said", "done", "noted"])
    usual = {"more": (), "set": None, "output": "results", "mlflow": True, "executor": "auto", "size": 3}
    assert values == {"name": "mine", "to": Path("f.txt"), **usual, "loss": (), "fast": False}
    code, _, values = typed(
        "mine", "1", "2", "--to", "f", "-o", "elsewhere", "--no-mlflow", "--executor", "local", "--set", "a=1",
        "--set", "b=2", "--loss", "focal", "--fast", "--loud",
    )  # fmt: skip
    changed = {"more": [1, 2], "set": ["a=1", "b=2"], "output": "elsewhere", "mlflow": False, "executor": "local"}
    assert code == 1 and values == {
        "name": "mine", "to": Path("f"), **changed, "size": 3, "loss": ["focal"], "fast": True
    }  # fmt: skip


def test_what_is_not_understood_is_refused() -> None:
    assert typed("mine")[0] == typed("mine", "--to", "f", "--size", "1")[0] == typed("--to", "f")[0] == 2


def test_the_docstring_is_the_help() -> None:
    flat = " ".join(typed("--help")[1].replace("│", " ").split())
    for text in ("File to write; its folder is created.", "[default: (all)]", "--no-mlflow", "Shout.", "KEY=VALUE"):
        assert text in flat, text
    assert "SweeperError" not in flat and "--say" not in flat
    assert argument_texts(inspect.getdoc(example) or "")["to"] == "File to write; its folder is created."


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_of_a_function_is_an_option(name: str) -> None:
    module = __import__(f"sweeper.api.{COMMANDS[name]}", fromlist=[name])
    taken = set(inspect.signature(getattr(module, name)).parameters) - set(GIVEN)
    options = {parameter.name for parameter in LISTED[name.rstrip("_").replace("_", "-")].params}
    assert taken <= options and options - taken <= PRINTING

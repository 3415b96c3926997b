"""Commands that run trials share their options, in the place where each declares them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sweeper.cli.common import Running, runs_trials

USUAL = {"output": "results", "tracking_uri": None, "mlflow": True, "address": None, "cpus": None, "executor": "auto"}


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ([], {}),
        (["-o", "elsewhere", "--no-mlflow", "--cpus", "2"], {"output": "elsewhere", "mlflow": False, "cpus": 2}),
        (["--executor", "local", "--tracking-uri", "sqlite:///m.db"], {"executor": "local", "tracking_uri": "sqlite:///m.db"}),
    ],
)  # fmt: skip
def test_a_command_gets_what_its_options_say(
    monkeypatch: pytest.MonkeyPatch, words: list[str], changes: dict[str, Any]
) -> None:
    for variable in ("SWEEPER_OUTPUT", "SWEEPER_EXECUTOR", "MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
    said: list[tuple[str, bool, Running]] = []

    @runs_trials
    def command(name: str, *, running: Running, last: bool = False) -> None:
        said.append((name, last, running))

    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["mine", *words, "--last"])
    assert done.exit_code == 0, done.output
    assert said == [("mine", True, {**USUAL, **changes})]
    assert [*inspect.signature(command).parameters][::7] == ["name", "last"], "the options stand where `running` stood"

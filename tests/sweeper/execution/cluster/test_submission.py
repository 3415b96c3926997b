"""What is submitted to a cluster is a command line that the driver understands as it was meant."""

import inspect
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sweeper.api import function_of
from sweeper.api.main import program
from sweeper.execution.cluster.submission import Request, submit, submit_resume


class Recorder:
    """The part of a cluster that takes jobs in; keeps their command lines."""

    def __init__(self) -> None:
        self.commands: list[Sequence[str]] = []

    def submit(self, name: str, command: Sequence[str], metadata: dict[str, str], folder: Path,
               modules: Sequence[Path]) -> str:  # fmt: skip
        """Keep the command line."""
        self.commands.append(command)
        return name


def _understood(command: Sequence[str]) -> dict[str, Any]:
    """Return what the command line's own parser makes of a driver's command."""
    python, dash, module, name, *arguments = command
    assert (python, dash, module) == ("python", "-m", "sweeper")
    return dict(program().parse_args([name, *arguments])[1].arguments)


def test_the_driver_waits_for_nodes_as_long_as_the_submitter_said(tmp_path: Path) -> None:
    jobs, minutes = Recorder(), round(random.uniform(0, 600), 3)
    request = Request(str(tmp_path), no_mlflow=True, settings=["seed=3"], wait_for_nodes=minutes)
    submit(jobs, "quickstart", "waits", lambda name: False, request)
    submit_resume(jobs, "waits", request, failed=True)
    for command in jobs.commands:
        understood = _understood(command)
        assert understood["wait_for_nodes"] == minutes
        assert understood["output"] == str(tmp_path) and understood["mlflow"] is False
        assert understood["set"] == ["seed=3"]


@pytest.mark.parametrize("command", ["run", "submit", "resume"])
def test_every_command_waits_equally_long_by_default(command: str) -> None:
    assert (
        inspect.signature(function_of(command)).parameters["wait_for_nodes"].default
        == Request("s3://sweeps").wait_for_nodes
    )

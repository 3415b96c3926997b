"""The options of every command that runs trials: where results go, where MLflow runs go, what executes the trials."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TypedDict

from sweeper.cli.common import RESULTS, Address, Cpus, NoMlflow, Output, RunsOn, Tracking
from sweeper.core.executors import Executor


class Running(TypedDict):
    """The values of these options, as keyword arguments of `sweeper.api`'s `run`, `resume` and `run_paper`."""

    output: str
    tracking_uri: str | None
    mlflow: bool
    address: str | None
    cpus: int | None
    executor: Executor


def _running(
    output: Output = RESULTS,
    tracking_uri: Tracking = None,
    no_mlflow: NoMlflow = False,
    address: Address = None,
    cpus: Cpus = None,
    executor: RunsOn = "auto",
) -> Running:
    return {
        "output": output,
        "tracking_uri": tracking_uri,
        "mlflow": not no_mlflow,
        "address": address,
        "cpus": cpus,
        "executor": executor,
    }


def runs_trials(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options in the place of its parameter `running`, which holds their values."""
    options = inspect.signature(_running, eval_str=True).parameters
    parameters: list[inspect.Parameter] = []
    for name, own in inspect.signature(command, eval_str=True).parameters.items():
        parameters += [*options.values()] if name == "running" else [own]

    @functools.wraps(command)
    def with_options(**given: object) -> None:
        asked = {name: given.pop(name) for name in options}
        command(**given, running=_running(**asked))  # type: ignore[arg-type]  # typer has checked them

    taken = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    with_options.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]  # what typer reads
    return with_options

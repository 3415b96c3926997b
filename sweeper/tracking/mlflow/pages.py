"""MLflow's pages of sweeps: addresses, questions that they answer, and MLflow's own server, by default on loopback."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from sweeper.core.display import redact
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, is_sweep_name
from sweeper.core.processes import OUR_ROOT, at_death, python_environment, python_module
from sweeper.journal.segments import sweep_id
from sweeper.tracking.mlflow.experiment import SWEEP_TAG, find_experiment, shared_experiment
from trainables.registry.names import did_you_mean

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

#: Part of the address that opens the page for model training, not the page for generative AI.
MODEL_TRAINING = "workflowType=machine_learning"


def read_data(name: str) -> Any:
    """Read a YAML file of this folder."""
    return yaml.safe_load(resources.files("sweeper.tracking.mlflow").joinpath(name).read_text("utf-8"))


def address(server: str, experiment_id: str) -> str:
    """Return the address of an experiment's runs on an MLflow server."""
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs?{MODEL_TRAINING}"


@dataclass(frozen=True)
class Question:
    """A question and how MLflow answers it.

    Attributes:
        words: the question.
        filter: filter for the search box of the experiment's page and for MLflow's search API.
        look: sorting, column or chart that shows the answer.
    """

    words: str
    filter: str
    look: str


def questions(losses: Sequence[str] = ("focal",), metric: str = "val_nll", rung: int = 3) -> list[Question]:
    """Return the questions of a sweep.

    Args:
        losses: loss families in the sweep's space; one serves as the example.
        metric: objective of the sweep.
        rung: first rung of the sweep, in epochs.
    """
    family = next((name for name in losses if name == "focal"), losses[0])
    facts = {"family": family, "metric": metric, "rung": rung}
    templates = read_data("questions.yaml")
    return [Question(**{key: text.format_map(facts) for key, text in template.items()}) for template in templates]


def as_markdown(asked: Sequence[Question]) -> str:
    """Format the questions for the experiment's description."""
    lines = ["Filters for the search box of this experiment:", ""]
    lines += [f"- {question.words} `{question.filter}` ({question.look})" for question in asked]
    return "\n".join(lines)


def as_lines(asked: Sequence[Question]) -> list[str]:
    """Format the questions as lines for a terminal, with filters ready to paste."""
    return [line for question in asked for line in (f"{question.words} ({question.look})", f"    {question.filter}")]


@contextmanager
def store(uri: str, refused: str, remedy: str) -> Iterator[MlflowClient]:
    """Yield the client of a store. Raises SweeperError with `refused`, the cause and `remedy` if MLflow fails."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield MlflowClient(tracking_uri=uri, registry_uri=uri)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise SweeperError(f"{refused}: {redact(str(error).splitlines()[0])}", remedy) from error


#: Limit of MLflow for one page of results; older experiments are ignored.
MOST = 1000


def experiments(uri: str, name: str | None = None) -> list[tuple[str, str]]:
    """Return name and id of the sweeps' experiments in a store, newest first; with `name`, only those of its sweeps.

    Raises:
        SweeperError: the store cannot be read, or has no such sweep.
    """
    refused = f"MLflow at {redact(uri)} cannot be read"
    with store(uri, refused, "correct --tracking-uri, or start the server") as client:
        stored = client.search_experiments(max_results=MOST, order_by=["creation_time DESC"])
    sweeps = [(experiment.name, experiment.experiment_id) for experiment in stored if SWEEP_TAG in experiment.tags]
    if name is None:
        return sweeps
    # Sweeps of one name in several folders have experiments such as `quickstart (mine/results)`.
    named = [sweep for sweep in sweeps if sweep[0].partition(" (")[0] == name]
    if not named and is_sweep_name(name):  # with `tracking.experiment` it has another name
        with store(uri, refused, "try again") as client:
            runs = client.search_runs([sweep[1] for sweep in sweeps], f"tags.sweep = '{name}'", max_results=1)
        named = [sweep for sweep in sweeps if runs and sweep[1] == runs[0].info.experiment_id]
    if not named:
        known = tuple(sweep[0] for sweep in sweeps)
        raise SweeperError(
            f"MLflow at {redact(uri)} has no sweep {name!r}{did_you_mean(name, known)}",
            f"complete it with `sweeper manage sync {name}`",
        )
    return named


def delete_runs(uri: str, paths: SweepPaths) -> int:
    """Mark a sweep's runs in MLflow as deleted, and return their number; `mlflow gc` removes them.

    Raises:
        SweeperError: the store cannot be read, or has no such sweep.
    """
    count, identity = 0, sweep_id(paths.journal)
    with store(uri, f"MLflow at {redact(uri)} cannot be read", "correct --tracking-uri, or start the server") as client:
        experiment = find_experiment(client, paths, shared_experiment(paths))
        if experiment is None:
            raise SweeperError(
                f"MLflow at {redact(uri)} has no sweep {paths.name!r}", "delete without --runs, or name its store"
            )
        own = [experiment.experiment_id]
        while runs := client.search_runs(own, f"tags.sweep_id = '{identity}'", max_results=MOST):
            for run in runs:
                client.delete_run(run.info.run_id)
            count += len(runs)
        if not client.search_runs(own, max_results=1):
            client.delete_experiment(*own)
    return count


#: Seconds for the server's processes to end by themselves.
GRACE_SECONDS = 5.0

#: MLflow would start eight processes for generative AI jobs, which sweeps do not have. The environment overrides this.
NO_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


LOOPBACK = "127.0.0.1"

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(tracking_uri: str, port: int, host: str = LOOPBACK) -> int:
    """Run MLflow's server until it is interrupted; return its exit status.

    Args:
        tracking_uri: the store; not an `http` address, which is a server already.
        port: port on this machine.
        host: address to listen on.

    Raises SweeperError if the store is a server already, or the port is taken.
    """
    if tracking_uri.startswith("http"):
        raise SweeperError(f"{tracking_uri} is already a server", "open it in a browser")
    if _taken(port):
        raise SweeperError(f"port {port} of this machine is taken", "choose another port with --port")
    command = python_module("mlflow", "server", "--backend-store-uri", tracking_uri, "--host", host)
    # Without a folder, uvicorn puts the working directory first on its path (`--app-dir`, uvicorn 0.3x).
    command += ["--port", str(port), "--workers", "1", "--uvicorn-opts", f"--app-dir {shlex.quote(str(OUR_ROOT))}"]
    with _ended_by_signals():
        # The server starts further processes, which would outlive it; in one process group they end together.
        process = subprocess.Popen(command, start_new_session=True, env={**NO_JOBS, **python_environment()})
        with ended_with_this_process(process.pid):
            try:
                return process.wait()
            except KeyboardInterrupt:
                return 0
            finally:
                _end_group(process)


def ended_with_this_process(group: int) -> AbstractContextManager[None]:
    """Kill the process group `group` if this process dies inside the context, also by SIGKILL."""
    return at_death('kill -s KILL -- "-$1" 2>/dev/null', str(group))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End all processes of the server; those that ignore SIGTERM are killed."""
    for number in ENDING:
        # A second Ctrl-C must not leave processes behind.
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0

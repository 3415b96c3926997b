"""MLflow's pages of a sweep: the view in which its experiment opens, questions to ask there, a server to browse them.

MLflow keeps a view that somebody shares as a tag of the experiment, and opens it by a link that names the tag. The page
unfolds a tree of runs only where runs are not ordered by their start, so this view orders them by the objective of
trials that ran to the end; those that stopped early lack it and come after them. The server is MLflow's own, on this
machine's loopback address only.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from sweeper.core.display import redact
from sweeper.core.errors import SweeperError
from sweeper.core.ids import is_sweep_name
from sweeper.core.processes import OUR_ROOT, at_death, python_environment, python_module
from trainables.registry.names import did_you_mean

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

KEY = "sweep"
#: MLflow's own tag for shared views, and our key in it.
TAG = f"mlflow.sharedViewState.{KEY}"

#: Charts of more runs show the best twenty until the reader asks for others: MLflow fetches each run's points.
MOST_SHOWN_RUNS = 100

GAMMA = "config_loss_gamma"

#: What makes the page one of model training, not of generative AI.
MODEL_TRAINING = "workflowType=machine_learning"


def shared_view(metric: str, mode: str, varying: Sequence[str], trials: int) -> str:
    """Return the tag's value.

    Args:
        metric: the objective.
        mode: `min` or `max`.
        varying: the hyperparameter columns that are params, the most important ones first.
        trials: how many runs there will be.
    """
    fixed = read_data("shared_view.yaml")
    state = {
        **fixed["view"],
        "orderByKey": f"metrics.`finished/{metric}`",
        "orderByAsc": mode == "min",
        "selectedColumns": [
            *(f"metrics.`{each}`" for each in dict.fromkeys((f"finished/{metric}", metric, *fixed["metrics"]))),
            *(f"params.`{each}`" for each in varying[:6]),
            *fixed["attributes"],
        ],
        "runsHiddenMode": "SHOW_ALL" if trials <= MOST_SHOWN_RUNS else "FIRST_20_RUNS",
        "compareRunCharts": [
            {"uuid": f"sweep-{number}", "metricSectionId": "sweep", "deleted": False, "isGenerated": False, **chart}
            for number, chart in enumerate(_charts(metric, varying, trials))
        ],
    }
    packed = zlib.compress(json.dumps(state, separators=(",", ":")).encode())
    return f"deflate;{base64.b64encode(packed).decode()}"


def read_data(name: str) -> Any:
    """Return what a file of this folder says."""
    return yaml.safe_load(resources.files("sweeper.tracking.mlflow").joinpath(name).read_text("utf-8"))


def _charts(metric: str, varying: Sequence[str], trials: int) -> list[dict[str, Any]]:
    def scatter(x: str, y: str, kind: str = "METRIC") -> dict[str, Any]:
        axes = {"xaxis": {"key": x, "type": kind}, "yaxis": {"key": y, "type": "METRIC"}}
        return {"type": "SCATTER", "runsCountToCompare": max(100, trials), **axes}

    numbers = [each for each in varying if not each.endswith("_name")]
    # MLflow leaves runs out that lack one of the params, and hides the chart if none has all.
    everywhere = [each for each in varying if each.endswith("_name") or each.startswith("config_optimizer_")]
    return [
        {
            "type": "PARALLEL",
            "runsCountToCompare": max(100, trials),
            "selectedParams": everywhere[:5],
            "selectedMetrics": [metric, "test_ece"],
            "showAllRuns": False,
        },
        scatter("test_accuracy", "test_ece"),
        *([scatter(GAMMA if GAMMA in varying else numbers[0], "test_ece", "PARAM")] if numbers else []),
        {"type": "LINE", "metricKey": "val_nll", "selectedMetricKeys": ["val_nll"], "runsCountToCompare": 20},
    ]


def address(server: str, experiment_id: str) -> str:
    """Return the link that opens the view on an MLflow server."""
    view = f"viewStateShareKey={KEY}&compareRunsMode=CHART&{MODEL_TRAINING}"
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs?{view}"


@dataclass(frozen=True)
class Question:
    """One question and how MLflow answers it.

    Attributes:
        words: the question.
        filter: for the search box of the experiment's page; what MLflow's search API takes as well.
        look: what to sort by, which column to show, or which chart to draw.
    """

    words: str
    filter: str
    look: str


def questions(losses: Sequence[str] = ("focal",), metric: str = "val_nll", rung: int = 3) -> list[Question]:
    """Return the questions of a sweep.

    Args:
        losses: the loss families in its space; one of them serves as the example.
        metric: its objective.
        rung: its first rung, in epochs.
    """
    family = next((name for name in losses if name == "focal"), losses[0])
    said = {"family": family, "metric": metric, "rung": rung}
    return [
        Question(**{key: words.format_map(said) for key, words in each.items()}) for each in read_data("questions.yaml")
    ]


def as_markdown(asked: Sequence[Question]) -> str:
    """Return the questions as the experiment's description shows them."""
    lines = ["Filters for the search box of this experiment:", ""]
    lines += [f"- {question.words} `{question.filter}` ({question.look})" for question in asked]
    return "\n".join(lines)


def as_lines(asked: Sequence[Question]) -> list[str]:
    """Return the questions as lines for a terminal, filters ready to paste."""
    return [line for question in asked for line in (f"{question.words} ({question.look})", f"    {question.filter}")]


@contextmanager
def store(uri: str, refused: str, remedy: str) -> Iterator[MlflowClient]:
    """Give the client of a store. Raises SweeperError of `refused`, why, and `remedy` where MLflow refuses it."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield MlflowClient(tracking_uri=uri, registry_uri=uri)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise SweeperError(f"{refused}: {redact(str(error).splitlines()[0])}", remedy) from error


#: The newest experiments that are looked at.
MOST = 1000


def experiments(uri: str, name: str | None = None) -> list[tuple[str, str]]:
    """Return name and id of the experiments of sweeps in a store, the newest first; of the sweep `name` alone if given.

    Raises:
        SweeperError: the store cannot be read, or has no such sweep.
    """
    refused = f"MLflow at {redact(uri)} cannot be read"
    with store(uri, refused, "correct --tracking-uri, or start the server") as client:
        found = client.search_experiments(max_results=MOST, order_by=["creation_time DESC"])
    sweeps = [(each.name, each.experiment_id) for each in found if TAG in each.tags]
    if name is None:
        return sweeps
    named = [each for each in sweeps if each[0] == name]
    if not named and is_sweep_name(name):  # `tracking.experiment` names it otherwise
        with store(uri, refused, "try again") as client:
            runs = client.search_runs([each[1] for each in sweeps], f"tags.sweep = '{name}'", max_results=1)
        named = [each for each in sweeps if runs and each[1] == runs[0].info.experiment_id]
    if not named:
        known = tuple(each[0] for each in sweeps)
        raise SweeperError(
            f"MLflow at {redact(uri)} has no sweep {name!r}{did_you_mean(name, known)}",
            f"complete it with `sweeper manage sync {name}`",
        )
    return named


def delete_runs(uri: str, name: str, identity: str) -> int:
    """Mark a sweep's runs in MLflow as deleted, which `mlflow gc` removes; return how many.

    Args:
        uri: of the store.
        name: of the sweep.
        identity: what tells it from others of its name, see `sweep_id`.

    Raises:
        SweeperError: the store cannot be read, or has no such sweep.
    """
    ((_, experiment),) = experiments(uri, name)
    from mlflow.tracking import MlflowClient

    client, count = MlflowClient(tracking_uri=uri), 0
    while found := client.search_runs([experiment], f"tags.sweep_id = '{identity}'", max_results=MOST):
        for run in found:
            client.delete_run(run.info.run_id)
        count += len(found)
    if not client.search_runs([experiment], max_results=1):
        client.delete_experiment(experiment)
    return count


#: How long the server's processes have to end by themselves.
GRACE_SECONDS = 5.0

#: MLflow starts eight processes that carry out jobs of its generative AI; no sweep has any. The environment may ask.
NO_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


LOOPBACK = "127.0.0.1"

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(tracking_uri: str, port: int, host: str = LOOPBACK) -> int:
    """Run MLflow's server until it is interrupted; return its exit status.

    Args:
        tracking_uri: the store; an `http` address is a server already and needs none.
        port: of this machine.
        host: the address to listen on.

    Raises SweeperError when the store is a server already, or the port is taken.
    """
    if tracking_uri.startswith("http"):
        raise SweeperError(f"{tracking_uri} is already a server", "open it in a browser")
    if _taken(port):
        raise SweeperError(f"port {port} of this machine is taken", "choose another port with --port")
    command = python_module("mlflow", "server", "--backend-store-uri", tracking_uri, "--host", host)
    # Without a folder, uvicorn puts the working directory first on its path (`--app-dir`, uvicorn 0.3x).
    command += ["--port", str(port), "--workers", "1", "--uvicorn-opts", f"--app-dir {shlex.quote(str(OUR_ROOT))}"]
    with _ended_by_signals():
        # The server starts processes of its own, which outlive it: they end together, as one group.
        process = subprocess.Popen(command, start_new_session=True, env={**NO_JOBS, **python_environment()})
        with ended_with_this_process(process.pid):
            try:
                return process.wait()
            except KeyboardInterrupt:
                return 0
            finally:
                _end_group(process)


def ended_with_this_process(group: int) -> AbstractContextManager[None]:
    """Have the process group `group` killed if this process ends before the context does: killed, it cannot."""
    return at_death('kill -s KILL -- "-$1" 2>/dev/null', str(group))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and the end of the terminal do what Ctrl-C does."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End every process that the server has started; one that does not listen is killed."""
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

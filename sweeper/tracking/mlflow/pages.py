"""MLflow's pages of a sweep: the view in which its experiment opens, questions to ask there, and all sweeps.

MLflow keeps a view that somebody shares as a tag of the experiment, and opens it by a link that names the tag. The page
unfolds a tree of runs only where runs are not ordered by their start, so this view orders them by the objective.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.text.redaction import redact
from trainables.registry.names import did_you_mean

KEY = "sweep"
TAG = f"mlflow.sharedViewState.{KEY}"
"""MLflow's own tag for shared views, and our key in it."""

SHOWN = ("test_accuracy", "test_nll", "test_ece", "test_posthoc_temperature_ece", "hessian_cross_entropy_lambda_max")
MOST_SHOWN_RUNS = 100
"""Charts of more runs show the best twenty until the reader asks for others: MLflow fetches each run's points."""

GAMMA = "config_loss_gamma"
SWEEP, REST = "sweep", "metrics"

MODEL_TRAINING = "workflowType=machine_learning"
"""What makes the page one of model training, not of generative AI."""


def shared_view(metric: str, mode: str, varying: Sequence[str], trials: int) -> str:
    """Return the tag's value.

    Args:
        metric: the objective.
        mode: `min` or `max`.
        varying: the hyperparameter columns that are params, the most important ones first.
        trials: how many runs there will be.
    """
    shown = [*dict.fromkeys((metric, *SHOWN))]
    sections = [(SWEEP, "Sweep", True), (REST, "Model metrics", False), ("system", "System metrics", False)]
    state = {
        "searchFilter": "",
        "orderByKey": f"metrics.`{metric}`",
        "orderByAsc": mode == "min",
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [
            *(f"metrics.`{each}`" for each in shown),
            *(f"params.`{each}`" for each in varying[:6]),
            "tags.`status`",
            "attributes.`Source`",
            "attributes.`Models`",
            "attributes.`Dataset`",
        ],
        "runsHiddenMode": "SHOW_ALL" if trials <= MOST_SHOWN_RUNS else "FIRST_20_RUNS",
        "compareRunSections": [
            {"uuid": uuid, "name": name, "display": open_, "isReordered": False, "deleted": False, "isGenerated": False}
            for uuid, name, open_ in sections
        ],
        "compareRunCharts": [
            {"uuid": f"sweep-{number}", "metricSectionId": SWEEP, "deleted": False, "isGenerated": False, **chart}
            for number, chart in enumerate(_charts(metric, varying, trials))
        ],
        "isAccordionReordered": True,
        "hideEmptyCharts": True,
    }
    packed = zlib.compress(json.dumps(state, separators=(",", ":")).encode())
    return f"deflate;{base64.b64encode(packed).decode()}"


def _charts(metric: str, varying: Sequence[str], trials: int) -> list[dict[str, Any]]:
    def scatter(x: str, y: str, kind: str = "METRIC") -> dict[str, Any]:
        axes = {"xaxis": {"key": x, "type": kind}, "yaxis": {"key": y, "type": "METRIC"}}
        return {"type": "SCATTER", "runsCountToCompare": max(100, trials), **axes}

    numbers = [each for each in varying if not each.endswith("_name")]
    # MLflow leaves runs out that lack one of the params, and hides the chart if none has all.
    everywhere = [each for each in varying if each.endswith("_name") or each.startswith("config_optimizer_")]
    charts = [
        {
            "type": "PARALLEL",
            "runsCountToCompare": max(100, trials),
            "selectedParams": everywhere[:5],
            "selectedMetrics": [metric, "test_ece"],
            "showAllRuns": False,
        },
        scatter("test_accuracy", "test_ece"),
        scatter(GAMMA if GAMMA in varying else numbers[0], "test_ece", "PARAM") if numbers else None,
        {"type": "LINE", "metricKey": "val_nll", "selectedMetricKeys": ["val_nll"], "runsCountToCompare": 20},
    ]
    return [chart for chart in charts if chart is not None]


def address(server: str, experiment_id: str) -> str:
    """Return the link that opens the view on an MLflow server."""
    view = f"viewStateShareKey={KEY}&compareRunsMode=CHART&{MODEL_TRAINING}"
    return f"{server.rstrip('/')}/#/experiments/{experiment_id}/runs?{view}"


FINISHED = "tags.status = 'completed'"


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
    return [
        Question("Which configurations are best calibrated?", FINISHED, "sort by test_ece"),
        Question(
            "Which loss and which γ calibrate best?",
            f"{FINISHED} and params.config_loss_name = '{family}'",
            "chart: scatter of test_ece against config_loss_gamma; compare: parallel coordinates of the params",
        ),
        Question(
            "Which are both accurate and calibrated?",
            f"{FINISHED} and metrics.test_accuracy > 0.95 and metrics.test_ece < 0.03",
            "chart: scatter of test_accuracy against test_ece",
        ),
        Question(
            "Does lower curvature go with better calibration?",
            f"{FINISHED} and metrics.hessian_cross_entropy_lambda_max > 0",
            "chart: scatter of test_ece against hessian_cross_entropy_lambda_max",
        ),
        Question(
            "How much does temperature scaling improve calibration?",
            f"{FINISHED} and metrics.test_posthoc_temperature_ece >= 0",
            "columns test_ece, test_posthoc_temperature_ece; compare three runs",
        ),
        Question(
            "Which trials stopped early, and why?", "tags.status = 'early_stopped'", "columns decision, stop_rung"
        ),
        Question("Which trials stopped at the first rung?", f"tags.stop_rung = '{rung}'", f"sort by {metric}"),
        Question("Which trials failed?", "tags.status = 'failed'", "columns stop_kind, error"),
        Question("The sweep itself: tables, report, best trial", "tags.configuration = 'sweep'", "see its artifacts"),
    ]


def as_markdown(asked: Sequence[Question]) -> str:
    """Return the questions as the experiment's description shows them."""
    lines = ["Filters for the search box of this experiment:", ""]
    lines += [f"- {question.words} `{question.filter}` ({question.look})" for question in asked]
    return "\n".join(lines)


def as_lines(asked: Sequence[Question]) -> list[str]:
    """Return the questions as lines for a terminal, filters ready to paste."""
    return [line for question in asked for line in (f"{question.words} ({question.look})", f"    {question.filter}")]


MOST = 1000
"""The newest experiments that are looked at."""


def experiments(uri: str, name: str | None = None) -> list[tuple[str, str]]:
    """Return name and experiment's id of the sweeps in a store, the newest first; of `name` alone if given.

    Raises:
        SweeperError: the store cannot be read, or has no such sweep.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
    from sqlalchemy.exc import SQLAlchemyError

    try:
        found = MlflowClient(tracking_uri=uri).search_experiments(max_results=MOST, order_by=["creation_time DESC"])
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise SweeperError(
            f"MLflow at {redact(uri)} cannot be read: {redact(str(error).splitlines()[0])}",
            "correct --tracking-uri, or start the server",
        ) from error
    sweeps = [(each.name, each.experiment_id) for each in found if TAG in each.tags]
    if name is None:
        return sweeps
    named = [each for each in sweeps if each[0] == name]
    if not named:
        known = tuple(each[0] for each in sweeps)
        raise SweeperError(
            f"MLflow at {redact(uri)} has no sweep {name!r}{did_you_mean(name, known)}",
            f"complete it with `sweeper sync {name}`",
        )
    return named

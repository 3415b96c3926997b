"""The view of a sweep in which MLflow's page of its experiment opens: a table of all trials, best first, and charts.

MLflow keeps a view that somebody shares as a tag of the experiment, and opens it by a link that names the tag. The page
unfolds a tree of runs only where runs are not ordered by their start, so this view orders them by the objective.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

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

"""Trials of three epochs on digits, and their reports compared but for the time that they took."""

import json
from collections.abc import Sequence
from typing import Any

from tests.trainables.training.lanes.comparison import configuration
from trainables.training.evaluation import EvaluationSettings
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings

VALUES: dict[str, Any] = {
    "loss": {"name": "focal", "gamma": 2.0},
    "architecture": {"name": "mlp", "width": 16},
    "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "batch_size": 64},
}
SETTINGS = TrialSettings(
    dataset={"name": "digits"},
    max_epochs=3,
    rungs=(1, 3),
    objective="val_nll",
    evaluation=EvaluationSettings(posthoc=({"name": "temperature"},), bootstrap=10),
)
SMALL_MLP = {"name": "mlp", "width": 20}
TIMES = {"wall_seconds", "seconds"}


def assignment(
    loss: object = "cross_entropy",
    architecture: object = SMALL_MLP,
    *,
    seeds: Sequence[int] = (11, 12),
    **optimizer: Any,
) -> Assignment:
    """Return the assignment of a configuration."""
    return Assignment(7, "c00007", configuration(loss, architecture, **optimizer), seeds)


def finished(trial: Trial) -> list[dict[str, Any]]:
    """Train a trial to its end or its failure; return its reports."""
    reports: list[dict[str, Any]] = []
    while not trial.finished and not (reports and "failure" in reports[-1]):
        reports.append(trial.advance().to_dict())
    return reports


def timeless(reports: Sequence[object]) -> list[str]:
    """Return reports without their times, as JSON text, in which a NaN equals itself."""
    return [json.dumps(untimed(report)) for report in reports]


def untimed(value: object) -> object:
    """Return a report's plain values without its times."""
    if isinstance(value, dict):
        return {key: untimed(each) for key, each in value.items() if key not in TIMES}
    return [untimed(each) for each in value] if isinstance(value, list) else value

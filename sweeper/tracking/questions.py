"""Questions about a sweep for MLflow: a search filter for each, and what to look at.

The experiment's description shows them and `sweeper ui` prints them. Does not import MLflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

"""The trade-off between accuracy, calibration error and curvature, with its Pareto front."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sweeper.core.cells import Row, Rows, float_of
from sweeper.core.labels import label, plural
from sweeper.reporting.figures.base import FIGURES, Figure, Json, Panel, colour, points, quantity, rings
from sweeper.reporting.figures.configurations import (
    categories,
    configuration_rows,
    counted,
    hover,
    one_sample_size,
    statuses,
    thin_points,
)
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED

LAMBDA_MAX = "hessian_cross_entropy_lambda_max"
#: Metrics in a point's tooltip.
IN_TOOLTIP = ("accuracy", "ece", LAMBDA_MAX)
LABELS = {"error": "validation error", "ece": "validation ECE", LAMBDA_MAX: label(LAMBDA_MAX)}

#: Largest number of configurations named in the finding; the plot and the data contain all.
MOST_NAMED = 12


@FIGURES.add("pareto_front", place=100, absent="Pareto front: no finished configuration has accuracy and ECE.")
def draw(results: Results) -> Figure | None:
    """Return one panel per pair of goals, with the front over all goals; None if no trial finished."""
    if not {"accuracy", "ece"} <= set(results.columns("evaluations")):
        return None
    sql, rows = configuration_rows(results, "accuracy IS NOT NULL AND ece IS NOT NULL")
    complete = [row for row in rows if None not in (row["accuracy"], row["ece"])]
    rows = [{**row, "error": 1 - float_of(row, "accuracy")} for row in complete]
    curved, sizes = one_sample_size([row for row in rows if row.get(LAMBDA_MAX) is not None])
    goals = ["error", "ece"]
    # Curvature is included only if a finished trial has it. Trials without it cannot be compared then, and are left
    # out.
    if any(row["status"] == FINISHED for row in curved):
        rows, goals = list(curved), [*goals, LAMBDA_MAX]
    finished = [row for row in rows if row["status"] == FINISHED]
    if not finished:
        return None
    best = pareto_optimal(np.array([[float_of(row, goal) for goal in goals] for row in finished]))
    front = [row for row, kept in zip(finished, best, strict=True) if kept]
    losses = categories(rows, "loss")
    pairs = [(a, b) for at, a in enumerate(goals) for b in goals[at + 1 :]]
    hessian = f" {sizes}" if LAMBDA_MAX in goals else ""
    return Figure(
        title="Accuracy, calibration and curvature together",
        caption=(
            f"{counted(rows)}, means over replicates on validation data; nearer the origin is better. Ringed: no other "
            f"finished configuration is as good on all of {', '.join(LABELS[goal] for goal in goals)} and better on "
            "one. With few replicates, membership of the front is uncertain."
            f"{hessian}"
        ),
        sql=[sql],
        panels=[panel(rows, front, x, y, losses) for x, y in pairs],
        findings=[finding(front, finished, goals)],
        legend=losses,
        statuses=statuses(rows),
    )


def pareto_optimal(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the rows of [n, goals] that no other row dominates. Goals are minimised.

    A row dominates another if it is nowhere larger and somewhere smaller. Equal rows do not dominate each other.
    """
    kept = np.ones(len(values), dtype=bool)
    for at, row in enumerate(values):
        better = (values <= row).all(axis=1) & (values < row).any(axis=1)
        kept[at] = not better.any()
    return kept


def finding(front: Rows, finished: Rows, goals: Sequence[str]) -> str:
    """Return a sentence that names the configurations on the front, the most accurate first."""
    named = sorted(front, key=lambda row: float_of(row, "error"))[:MOST_NAMED]
    words = ", ".join(f"{row['trial']} ({row['loss']})" for row in named)
    more = f" and {len(front) - len(named)} more" if len(front) > len(named) else ""
    return (
        f"On the Pareto front of {', '.join(LABELS[goal] for goal in goals)}: {len(front)} of "
        f"{plural(len(finished), 'finished configuration')}: {words}{more}."
    )


def panel(rows: Rows, front: Rows, x: str, y: str, losses: Sequence[str]) -> Panel:
    """Return the panel of one pair of goals: every configuration, with rings around those on the front."""
    shown, few = thin_points(rows)  # finished trials, and so the front, are never thinned out
    best = [{**row, "says": says(row)} for row in front]
    by = colour("loss", losses)
    # `detail` gives the rings the points' category, so that the page's filter hides both together.
    layers = [points(shown, says, color=by), rings(best, "ink", size=180, detail=by)]
    return Panel(f"{LABELS[x]} and {LABELS[y]}", layers, scale(x, rows), scale(y, rows), few, points=len(rows))


def says(row: Row) -> str:
    """Return a point's tooltip."""
    return hover(row, [name for name in IN_TOOLTIP if row.get(name) is not None])


def scale(goal: str, rows: Rows) -> Json:
    """Return the axis of a goal, logarithmic if all values are positive."""
    log = min(float_of(row, goal) for row in rows) > 0
    return quantity(goal, LABELS[goal], log=log, zero=not log)

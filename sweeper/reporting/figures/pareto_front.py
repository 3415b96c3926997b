"""The trade-off of accuracy, calibration error and curvature, with its Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.basedatatypes import BaseTraceType

from sweeper.reporting.figure_parts.configurations import configuration_rows, one_sample_size, sample_size_remark
from sweeper.reporting.figure_parts.figure import (
    Axis,
    Figure,
    Panel,
    axis,
    categories,
    counted,
    log_axis,
    marker,
    plot,
    scatter_type,
    statuses,
    symbol,
    tagged,
    thinned,
)
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED
from sweeper.text.cells import Row, Rows, float_of, text_of
from sweeper.text.labels import STATUS_WORDS, label, number, plural

ABSENT = "Pareto front: no finished configuration has accuracy and ECE."

CURVATURE = "hessian_cross_entropy_lambda_max"
LABELS = {"error": "validation error", "ece": "validation ECE", CURVATURE: label(CURVATURE)}

MOST_NAMED = 12
"""Configurations of a front that are named in words; the plot and the data have all."""


def draw(results: Results) -> Figure | None:
    """Return the pairs of goals, with the front over all of them; None where nothing finished."""
    if not {"accuracy", "ece"} <= set(results.columns("evaluations")):
        return None
    sql, rows = configuration_rows(results, "accuracy IS NOT NULL AND ece IS NOT NULL")
    complete = [row for row in rows if None not in (row["accuracy"], row["ece"])]
    rows = [{**row, "error": 1 - float_of(row, "accuracy")} for row in complete]
    curved, left_out = one_sample_size([row for row in rows if row.get(CURVATURE) is not None])
    goals = ["error", "ece"]
    if any(row["status"] == FINISHED for row in curved):
        rows, goals = list(curved), [*goals, CURVATURE]
    finished = [row for row in rows if row["status"] == FINISHED]
    if not finished:
        return None
    best = pareto_optimal(np.array([[float_of(row, goal) for goal in goals] for row in finished]))
    front = [row for row, kept in zip(finished, best, strict=True) if kept]
    losses = categories(rows, "loss")
    pairs = [(a, b) for at, a in enumerate(goals) for b in goals[at + 1 :]]
    hessian = f" {sample_size_remark(curved, left_out)}" if CURVATURE in goals else ""
    return Figure(
        key="pareto-front",
        title="Accuracy, calibration and curvature together",
        caption=(
            f"{counted(rows)}, means over replicates on validation data; nearer the origin is better. Ringed: on the "
            f"Pareto front of {', '.join(LABELS[goal] for goal in goals)}, taken together: no finished configuration "
            "is as good in all and better in one. With few replicates, membership of the front is uncertain."
            f"{hessian}"
        ),
        sql=[sql],
        panels=[panel(rows, front, x, y, losses) for x, y in pairs],
        findings=[finding(front, finished, goals)],
        legend=losses,
        statuses=statuses(rows),
    )


def pareto_optimal(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows of [n, goals], all to be small, no other row dominates.

    A row dominates another where it is nowhere larger and somewhere smaller; equal rows do not dominate each other.
    """
    kept = np.ones(len(values), dtype=bool)
    for at, row in enumerate(values):
        better = (values <= row).all(axis=1) & (values < row).any(axis=1)
        kept[at] = not better.any()
    return kept


def finding(front: Rows, finished: Rows, goals: Sequence[str]) -> str:
    """Return the front in words, the most accurate first."""
    named = sorted(front, key=lambda row: float_of(row, "error"))[:MOST_NAMED]
    words = ", ".join(f"{row['trial']} ({row['loss']})" for row in named)
    more = f" and {len(front) - len(named)} more" if len(front) > len(named) else ""
    return (
        f"On the Pareto front of {', '.join(LABELS[goal] for goal in goals)}: {len(front)} of "
        f"{plural(len(finished), 'finished configuration')}: {words}{more}."
    )


def panel(rows: Rows, front: Rows, x: str, y: str, losses: Sequence[str]) -> Panel:
    """Return one pair of goals: every configuration, and rings round those on the front."""
    traces: list[BaseTraceType] = []
    shown, few = thinned(rows)
    kind = scatter_type(len(shown))
    for status in reversed(statuses(shown)):
        for index, loss in enumerate(losses):
            mine = [row for row in shown if row["status"] == status and str(row["loss"]) == loss]
            if mine:
                done = status == FINISHED
                traces.append(
                    points(kind, mine, x, y, marker(index, symbol(status)), tagged(status, loss), 1.0 if done else 0.5)
                )
    ring = {"color": "rgba(0,0,0,0)", "size": 15, "line": {"width": 1.8, "color": "var(--ink)"}}
    for loss in losses:
        mine = [row for row in front if str(row["loss"]) == loss]
        if mine:
            traces.append(points(kind, mine, x, y, ring, tagged(FINISHED, loss), 1.0))
    drawn = plot(traces, scale(x, rows), scale(y, rows))
    return Panel(f"{LABELS[x]} and {LABELS[y]}", few, drawn, points=len(rows))


def points(
    kind: type[go.Scatter] | type[go.Scattergl],
    rows: Rows,
    x: str,
    y: str,
    mark: Mapping[str, object],
    tags: Mapping[str, str],
    opacity: float,
) -> BaseTraceType:
    """Return one trace of points with their hover text."""
    return kind(
        x=[row[x] for row in rows], y=[row[y] for row in rows], mode="markers", marker=mark, meta=tags,
        opacity=opacity, text=[hover(row) for row in rows], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def scale(goal: str, rows: Rows) -> Axis:
    """Return the axis of a goal: logarithmic where all values are positive."""
    values, words = [float_of(row, goal) for row in rows], LABELS[goal].replace("λ_max", "λ<sub>max</sub>")
    return log_axis(words, values) if min(values) > 0 else axis(words, rangemode="tozero")


def hover(row: Row) -> str:
    """Return what a point says of itself."""

    def value(name: str, column: str) -> str:
        deviation = row.get(f"{column}_sd")
        return f"{name} {number(row[column])}" + ("" if deviation is None else f" ± {number(deviation)}")

    family = f"{row['loss']}" + (f" γ {number(row['gamma'])}" if row["gamma"] is not None else "")
    lines = [
        f"<b>{row['trial']}</b> {family} · {row['architecture']}",
        f"{STATUS_WORDS[text_of(row, 'status')]}, epoch {row['epoch']}, n = {row['replicates']}",
        value("accuracy", "accuracy"),
        value("ECE", "ece"),
    ]
    if row.get(CURVATURE) is not None:
        lines.append(value(label(CURVATURE), CURVATURE))
    return "<br>".join(lines)

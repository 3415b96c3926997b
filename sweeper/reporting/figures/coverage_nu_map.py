"""Validation calibration error and accuracy over coverage κ and smoothing ν: selective paper, figure 6."""

from __future__ import annotations

import math
from collections import defaultdict

import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType

from sweeper.analysis.statistics.basics import spread
from sweeper.reporting.figure_parts.configurations import configuration_rows
from sweeper.reporting.figure_parts.figure import (
    Figure,
    Panel,
    axis,
    categories,
    counted,
    log_axis,
    plot,
    statuses,
    symbol,
    tagged,
)
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED
from sweeper.text.cells import Row, Rows, float_of, float_or_none, text_of
from sweeper.text.labels import STATUS_WORDS, number, plural

ABSENT = "Maps over coverage and ν: no evaluated configuration has both a coverage and a ν."

SETTINGS = {"coverage": "config_loss_coverage", "nu": "config_loss_nu", "score": "config_loss_score"}
METRICS = {"ece": "validation ECE", "accuracy": "validation accuracy"}

SCALE = [[0, "var(--ramp-1)"], [0.5, "var(--ramp-2)"], [1, "var(--ramp-3)"]]
"""Best is darkest on paper and brightest on a dark page; accuracy takes it the other way round."""


def draw(results: Results) -> Figure | None:
    """Return one map per network and metric: cells where the sweep ran a grid, points where it drew at random."""
    columns = {*results.columns("trials"), *results.columns("evaluations")}
    if not {"config_loss_coverage", "config_loss_nu", *METRICS} <= columns:
        return None
    condition = "config_loss_coverage IS NOT NULL AND config_loss_nu > 0 AND ece IS NOT NULL"
    sql, rows = configuration_rows(results, condition, SETTINGS)
    if not rows:
        return None
    grid = is_grid(rows)
    scores = [name for name in categories(rows, "score") if name != "None"]
    among = f" Scores: {', '.join(scores)}; hover to see which." if len(scores) > 1 else ""
    how = (
        "Each cell: mean over the finished configurations at that coverage and ν; other settings may vary."
        if grid
        else "Each point: one configuration, mean over its replicates."
    )
    return Figure(
        key="coverage-nu-map",
        title="Selective risk over coverage and ν",
        caption=(
            f"Calibration error and accuracy on validation data of {counted(rows)} over coverage κ (share of samples "
            f"treated as low-confidence) and smoothing ν. {how} Darker is better.{among}"
        ),
        sql=[sql],
        panels=[
            panel([row for row in rows if str(row["architecture"]) == architecture], metric, architecture, grid)
            for architecture in categories(rows, "architecture")
            for metric in METRICS
        ],
        statuses=() if grid else statuses(rows),
    )


def is_grid(rows: Rows) -> bool:
    """Return whether every pair of a coverage and a ν that occur was run to the end, at two values of each or more."""
    finished = [row for row in rows if row["status"] == FINISHED]
    pairs = {(row["coverage"], row["nu"]) for row in finished}
    sides = [len({pair[at] for pair in pairs}) for at in (0, 1)]
    return min(sides) > 1 and len(pairs) == sides[0] * sides[1]


def panel(rows: Rows, metric: str, architecture: str, grid: bool) -> Panel:
    """Return one network's map of one metric."""
    shown = [row for row in rows if row[metric] is not None]
    heading = f"{architecture}: {METRICS[metric]}"
    drawn = cells(shown, metric) if grid else points(shown, metric)
    return Panel(heading, remarks(shown, metric), drawn, points=len(shown))


def remarks(rows: Rows, metric: str) -> list[str]:
    """Return where the best finished configuration lies, with its deviation."""
    finished = [row for row in rows if row["status"] == FINISHED]
    if not finished:
        return ["No configuration has finished."]
    best = (min if metric == "ece" else max)(finished, key=lambda row: float_of(row, metric))
    deviation = best[f"{metric}_sd"]
    around = "" if deviation is None else f" ± {number(deviation)}"
    return [
        f"Best of {plural(len(finished), 'finished configuration')}: {number(best[metric])}{around} at coverage "
        f"{number(best['coverage'])}, ν {number(best['nu'])} ({best['trial']}, n = {best['replicates']})."
    ]


def colours(values: list[float], metric: str) -> dict[str, object]:
    """Return the colour scale of a metric over the values drawn; a few that diverged do not take all of it."""
    ordered = sorted(values)
    high = ordered[math.ceil(0.95 * (len(ordered) - 1))] if metric == "ece" else ordered[-1]
    low = ordered[0] if metric == "ece" else ordered[math.floor(0.05 * (len(ordered) - 1))]
    bar = {"thickness": 10, "outlinewidth": 0, "tickfont": {"size": 10.5}}
    return {"colorscale": SCALE, "reversescale": metric != "ece", "cmin": low, "cmax": high, "colorbar": bar}


def cells(rows: Rows, metric: str) -> go.Figure:
    """Return a heat map of a grid, finished configurations only; other hyperparameters are averaged over."""
    found: dict[tuple[float, float], list[float]] = defaultdict(list)
    for row in rows:
        if row["status"] == FINISHED:
            found[float_of(row, "coverage"), float_of(row, "nu")].append(float_of(row, metric))
    coverages, nus = (sorted({pair[at] for pair in found}) for at in (0, 1))
    means = {pair: spread(values) for pair, values in found.items()}
    style = colours([mean.mean for mean in means.values()], metric)
    limits = {"zmin": style.pop("cmin"), "zmax": style.pop("cmax")}
    trace = go.Heatmap(
        x=[number(value) for value in coverages],
        y=[number(value) for value in nus],
        z=[[means[c, n].mean if (c, n) in means else None for c in coverages] for n in nus],
        text=[
            [f"{means[c, n].text()}, n = {means[c, n].n}" if (c, n) in means else "none" for c in coverages]
            for n in nus
        ],
        hovertemplate=f"coverage %{{x}}, ν %{{y}}<br>{METRICS[metric]} %{{text}}<extra></extra>",
        meta=tagged(FINISHED), xgap=2, ygap=2, **limits, **style,
    )  # fmt: skip
    return plot([trace], axis("coverage κ", type="category"), axis("ν", type="category"))


def points(rows: Rows, metric: str) -> go.Figure:
    """Return configurations drawn at random as coloured points, marker by status."""
    style = colours([float_of(row, metric) for row in rows], metric)
    traces: list[BaseTraceType] = []
    for status in reversed(statuses(rows)):
        mine = [row for row in rows if row["status"] == status]
        mark = {"color": [row[metric] for row in mine], "size": 11, "symbol": symbol(status), "line": {"width": 1.6}}
        trace = go.Scatter(
            x=[row["coverage"] for row in mine], y=[row["nu"] for row in mine], mode="markers",
            marker={**mark, **style, "showscale": status == statuses(rows)[0]}, meta=tagged(status),
            text=[hover(row, metric) for row in mine], hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
        traces.append(trace)
    return plot(traces, axis("coverage κ"), log_axis("ν", (float_or_none(row, "nu") for row in rows)))


def hover(row: Row, metric: str) -> str:
    """Return what a point says of itself."""
    deviation = row[f"{metric}_sd"]
    around = "" if deviation is None else f" ± {number(deviation)}"
    score = f", score {row['score']}" if row["score"] else ""
    return (
        f"<b>{row['trial']}</b> {row['loss']} · {row['architecture']}<br>{STATUS_WORDS[text_of(row, 'status')]}, epoch "
        f"{row['epoch']}, n = {row['replicates']}<br>coverage {number(row['coverage'])}, ν {number(row['nu'])}{score}"
        f"<br>{METRICS[metric]} {number(row[metric])}{around}"
    )

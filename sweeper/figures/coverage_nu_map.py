"""Validation calibration error and accuracy over coverage κ and smoothing ν: selective paper, figure 6."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from sweeper.analysis.statistics.basics import spread
from sweeper.figures.base import FIGURES, Axis, Curve, Figure, HeatMap, Mark, Panel, Scale, log_axis
from sweeper.figures.configurations import (
    categories,
    configuration_rows,
    counted,
    hover,
    points_of,
    statuses,
    with_deviation,
)
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED
from sweeper.text.cells import Row, Rows, float_of, floats, grouped
from sweeper.text.labels import number, plural

SETTINGS = {"coverage": "config_loss_coverage", "nu": "config_loss_nu", "score": "config_loss_score"}
METRICS = {"ece": "validation ECE", "accuracy": "validation accuracy"}


@FIGURES.add(
    "coverage_nu_map",
    place=50,
    absent="Maps over coverage and ν: no evaluated configuration has both a coverage and a ν.",
)
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
    among = f" Scores: {', '.join(scores)}; a click on a point says which." if len(scores) > 1 else ""
    averaged = "Each cell: mean over the finished configurations at that coverage and ν; other settings may vary."
    how = averaged if grid else "Each point: one configuration, mean over its replicates."
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
    x, y, values = Axis("coverage κ"), log_axis("ν", floats(shown, "nu")), floats(shown, metric)
    marks: list[Mark] = [*points(shown, metric)]
    if grid:
        drawn = cells(shown, metric)
        x, y, marks = Axis("coverage κ", names=True), Axis("ν", names=True), [drawn]
        values = [value for line in drawn.values for value in line if value is not None]
    return Panel(heading, remarks(shown, metric), marks, x, y, colours(values, metric), points=len(shown))


def remarks(rows: Rows, metric: str) -> list[str]:
    """Return where the best finished configuration lies, with its deviation."""
    finished = [row for row in rows if row["status"] == FINISHED]
    if not finished:
        return ["No configuration has finished."]
    best = (min if metric == "ece" else max)(finished, key=lambda row: float_of(row, metric))
    return [
        f"Best of {plural(len(finished), 'finished configuration')}: {with_deviation(best, metric)} at coverage "
        f"{number(best['coverage'])}, ν {number(best['nu'])} ({best['trial']}, n = {best['replicates']})."
    ]


def colours(values: list[float], metric: str) -> Scale:
    """Return the colour scale of a metric over the values drawn; a few that diverged do not take all of it."""
    ordered = sorted(values) or [0.0]
    high = ordered[math.ceil(0.95 * (len(ordered) - 1))] if metric == "ece" else ordered[-1]
    low = ordered[0] if metric == "ece" else ordered[math.floor(0.05 * (len(ordered) - 1))]
    return Scale(low, high, reversed=metric != "ece")


def cells(rows: Rows, metric: str) -> HeatMap:
    """Return a heat map of a grid, finished configurations only; other hyperparameters are averaged over."""
    finished = [row for row in rows if row["status"] == FINISHED]
    found = grouped(finished, lambda row: (float_of(row, "coverage"), float_of(row, "nu")))
    coverages, nus = (sorted({pair[at] for pair in found}) for at in (0, 1))
    means = {pair: spread(floats(held, metric)) for pair, held in found.items()}
    values = [[means[c, n].mean if (c, n) in means else None for c in coverages] for n in nus]
    words = {pair: f"{mean.text()}, n = {mean.n}" for pair, mean in means.items()}
    text = [[words.get((c, n), "none") for c in coverages] for n in nus]
    said = f"coverage %{{x}}, ν %{{y}}<br>{METRICS[metric]} %{{text}}"
    return HeatMap([*map(number, coverages)], [*map(number, nus)], values, text, said)


def points(rows: Rows, metric: str) -> list[Curve]:
    """Return configurations drawn at random as coloured points, marker by status."""
    found = []
    for status in reversed(statuses(rows)):
        mine = [row for row in rows if row["status"] == status]
        points = points_of(mine, "coverage", "nu", partial(says, metric=metric), size=11)
        found.append(replace(points, values=floats(mine, metric)))
    return found


def says(row: Row, metric: str) -> str:
    """Return what a point says of itself."""
    score = f", score {row['score']}" if row["score"] else ""
    return (
        f"{hover(row)}<br>coverage {number(row['coverage'])}, ν {number(row['nu'])}{score}"
        f"<br>{METRICS[metric]} {with_deviation(row, metric)}"
    )

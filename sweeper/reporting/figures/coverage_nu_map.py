"""Maps of validation calibration error and accuracy over coverage κ and smoothing ν (selective paper, figure 6)."""

from __future__ import annotations

import math
from functools import partial

from sweeper.core.cells import Row, Rows, float_of, floats, grouped
from sweeper.core.labels import number, plural
from sweeper.core.statistics.basics import spread
from sweeper.reporting.figures.base import FIGURES, Figure, Json, Panel, mark, names, points, quantity, shade
from sweeper.reporting.figures.configurations import (
    categories,
    configuration_rows,
    counted,
    hover,
    statuses,
    with_deviation,
)
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED

METRICS = {"ece": "validation ECE", "accuracy": "validation accuracy"}


@FIGURES.add(
    "coverage_nu_map",
    place=50,
    absent="Maps over coverage and ν: no evaluated configuration has both a coverage and a ν.",
)
def draw(results: Results) -> Figure | None:
    """Return one map per network and metric, with cells for a grid and points for random draws."""
    coverage, nu = results.quantity("coverage"), results.quantity("nu")
    if coverage is None or nu is None or not {*METRICS} <= {*results.columns("evaluations")}:
        return None
    # ν has a logarithmic axis, which cannot show ν = 0, the unsmoothed loss.
    condition = f"{coverage} IS NOT NULL AND {nu} > 0 AND ece IS NOT NULL"
    sql, rows = configuration_rows(results, condition, {"score": "config_loss_score"})
    if not rows:
        return None
    grid = is_grid(rows)
    scores = [name for name in categories(rows, "score") if name != "None"]
    among = f" Scores: {', '.join(scores)}; a click on a point says which." if len(scores) > 1 else ""
    averaged = "Each cell: mean over the finished configurations at that coverage and ν; other settings may vary."
    how = averaged if grid else "Each point: one configuration, mean over its replicates."
    return Figure(
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
    """Return whether finished trials cover every pair of coverage and ν, with at least two values of each."""
    finished = [row for row in rows if row["status"] == FINISHED]
    pairs = {(row["coverage"], row["nu"]) for row in finished}
    sides = [len({pair[at] for pair in pairs}) for at in (0, 1)]
    # Random draws never repeat a value, so they are not a full product. A grid with holes would have missing cells.
    return min(sides) > 1 and len(pairs) == sides[0] * sides[1]


def panel(rows: Rows, metric: str, architecture: str, grid: bool) -> Panel:
    """Return the map of one metric on one network."""
    shown = [row for row in rows if row[metric] is not None]
    heading = f"{architecture}: {METRICS[metric]}"
    if not grid:
        scale = colours(floats(shown, metric), metric)
        drawn = points(shown, partial(says, metric=metric), size=110, color=scale)
        x, y = quantity("coverage", "coverage κ"), quantity("nu", "ν", log=True)
    else:
        held = cells(shown, metric)
        drawn = mark("rect", held, color=colours(floats(held, metric), metric))
        nus = map(number, sorted({float_of(row, "nu") for row in shown}, reverse=True))  # names run from the top down
        x, y = names("coverage", "coverage κ"), names("nu", "ν", nus)
    return Panel(heading, [drawn], x, y, remarks(shown, metric), points=len(shown))


def remarks(rows: Rows, metric: str) -> list[str]:
    """Return a sentence on the best finished configuration and its position in the map."""
    finished = [row for row in rows if row["status"] == FINISHED]
    if not finished:
        return ["No configuration has finished."]
    # The metrics of this figure are ECE and accuracy.
    best = (min if metric == "ece" else max)(finished, key=lambda row: float_of(row, metric))
    return [
        f"Best of {plural(len(finished), 'finished configuration')}: {with_deviation(best, metric)} at coverage "
        f"{number(best['coverage'])}, ν {number(best['nu'])} ({best['trial']}, n = {best['replicates']})."
    ]


def colours(values: list[float], metric: str) -> Json:
    """Return the colour scale of a metric over the values drawn."""
    # The worst 5 % share the lightest colour. Otherwise a few diverged trials would stretch the whole scale.
    ordered = sorted(values) or [0.0]  # a panel without values still needs a scale
    high = ordered[math.ceil(0.95 * (len(ordered) - 1))] if metric == "ece" else ordered[-1]
    low = ordered[0] if metric == "ece" else ordered[math.floor(0.05 * (len(ordered) - 1))]
    return shade(metric, low, high, larger_is_better=metric != "ece")


def cells(rows: Rows, metric: str) -> list[Row]:
    """Return the cells of a grid: means over the finished configurations at one coverage and ν."""
    finished = [row for row in rows if row["status"] == FINISHED]
    map_cells: list[Row] = []
    for (coverage, nu), held in sorted(
        grouped(finished, lambda r: (float_of(r, "coverage"), float_of(r, "nu"))).items()
    ):
        mean = spread(floats(held, metric))
        place = {"coverage": number(coverage), "nu": number(nu)}
        said = f"coverage {place['coverage']}, ν {place['nu']}\n{METRICS[metric]} {mean.text()}, n = {mean.n}"
        map_cells.append({**place, metric: mean.mean, "says": said})
    return map_cells


def says(row: Row, metric: str) -> str:
    """Return a point's tooltip."""
    score = f"\nscore {row['score']}" if row["score"] else ""
    return f"{hover(row)}{score}\n{METRICS[metric]} {with_deviation(row, metric)}"

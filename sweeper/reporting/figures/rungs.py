"""Learning curves with the scheduler's rungs and an audit of its decisions.

The audit shows the stopped trials, the cut-offs, the epochs saved, and how well rungs predicted the final rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from sweeper.core.cells import Row, Rows, by_trial, float_of, float_or_none, floats, grouped, int_of, text_of
from sweeper.core.labels import duration, label, number, plural
from sweeper.core.statistics.basics import correlation
from sweeper.reporting.figures.base import (
    DONE,
    FIGURES,
    Figure,
    Json,
    Panel,
    colour,
    dash,
    fields,
    full_where,
    mark,
    paint,
    points,
    quantity,
    verticals,
)
from sweeper.reporting.figures.configurations import categories, counted, thin_points
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, final_sql, objective
from sweeper.results.listing import epoch_limit
from sweeper.scheduling import SCHEDULERS

#: Largest number of curves per status. More would cover each other, and each costs drawing time.
CURVES = 120
#: The axis is cut if the largest value is more than FAR times the OUTLYING quantile.
OUTLYING, FAR = 0.95, 10
#: With more curves than this, finished trials are also drawn thin.
CROWDED = 100
#: Largest number of epochs drawn per curve, about one for every four pixels of a panel.
POINTS = 120


@FIGURES.add("learning_curves", place=130, absent="Learning curves: no trial has reported an epoch.")
def draw_curves(results: Results) -> Figure | None:
    """Return the objective and the validation ECE by epoch, means over replicates; None without epochs."""
    goal = objective(results)
    columns = set(results.columns("epochs"))
    metrics = [name for name in dict.fromkeys((goal.metric, "val_ece")) if name in columns]
    sql = curves_sql(results, metrics)
    curves = [*by_trial(results.rows(sql)).values()]  # each trial's rows, by epoch
    if not curves or not metrics:
        return None
    rungs_sql = (
        "SELECT DISTINCT rung FROM decisions WHERE kind IN ('stop', 'continue') AND rung IS NOT NULL ORDER BY rung"
    )
    rungs = [int_of(row, "rung") for row in results.rows(rungs_sql) if row["rung"] is not None]
    shown, remark = thin_out(curves, goal.metric if goal.metric in metrics else metrics[0])
    trials = [curve[0] for curve in curves]
    losses, networks = categories(trials, "loss"), categories(trials, "architecture")
    drawn_rungs = f" Dotted: rungs at epochs {', '.join(map(str, rungs))}." if rungs else ""
    return Figure(
        title="Learning curves",
        caption=f"Means over the replicates of {counted(trials, 'trial')}, by epoch. Faint: unfinished."
        f"{drawn_rungs}{remark}",
        sql=[sql, rungs_sql],
        tables=["epochs", "trials", "decisions"],
        panels=[curves_panel(shown, metric, losses, networks, rungs) for metric in metrics],
        legend=losses,
        dashes=networks if len(networks) > 1 else [],
    )


def curves_sql(results: Results, metrics: Sequence[str]) -> str:
    """Return the query of one row per trial and epoch."""
    loss, network = (
        f"config_{part}_name" if f"config_{part}_name" in results.columns("trials") else "'all'"
        for part in ("loss", "architecture")
    )
    means = ", ".join(f"avg({name}) AS {name}" for name in metrics)
    return (
        f"SELECT trial, epoch, min({loss}) AS loss, min({network}) AS architecture, min(status) AS status, {means}\n"
        "FROM epochs JOIN trials USING (trial, replicate)\nGROUP BY trial, epoch ORDER BY trial, epoch"
    )


def thin_out(curves: Sequence[Rows], metric: str) -> tuple[list[Rows], str]:
    """Return at most CURVES curves per status, spread evenly by last value, and a sentence on the curves left out."""
    shown: list[Rows] = []
    for mine in grouped(curves, lambda curve: curve[0]["status"]).values():
        order = np.argsort(floats([curve[-1] for curve in mine], metric), kind="stable")  # missing values (NaN) last
        count = min(CURVES, len(mine))
        shown += [mine[order[round(at * (len(mine) - 1) / max(1, count - 1))]] for at in range(count)]
    left_out = len(curves) - len(shown)
    return shown, (f" {plural(left_out, 'curve')} left out, evenly by the last value." if left_out else "")


def curves_panel(
    curves: Sequence[Rows], metric: str, losses: Sequence[str], networks: Sequence[str], rungs: Sequence[int]
) -> Panel:
    """Return the panel of one metric by epoch, one line per trial, finished trials on top."""
    crowded = len(curves) > CROWDED
    ordered = sorted(curves, key=lambda curve: curve[0]["status"] == FINISHED)
    # Long curves are decimated, but keep their last value, because readers compare it.
    rows = [row for curve in ordered for row in (*curve[: -1 : -(-len(curve) // POINTS)], curve[-1])]
    heading = " ".join(map(label, metric.split("_", 1)))
    shown, cut = visible([float_or_none(row, metric) for curve in curves for row in curve])
    remarks = [f"Values above {max(shown):.3g} are cut off."] if cut else []
    limits = (min(shown) / 10**0.05, max(shown) * 10**0.05) if cut else None
    across, up = quantity("epoch", "epoch", zero=True), quantity(metric, heading, log=True, limits=limits)
    lines = mark(
        "line", rows, look={"clip": True, "point": "transparent"},
        color=colour("loss", losses), strokeDash=dash("architecture", networks), detail={"field": "trial"},
        strokeWidth={"condition": {"test": DONE, "value": 1.0 if crowded else 1.8}, "value": 1.0},
        strokeOpacity={"condition": {"test": DONE, "value": 0.6 if crowded else 0.95}, "value": 0.4},
        tooltip=fields("trial", "loss", "architecture", epoch="epoch", **{metric: heading}),
    )  # fmt: skip
    return Panel(heading, [*verticals({rung: f"rung {rung}" for rung in rungs}), lines], across, up, remarks)


def visible(values: Sequence[float | None]) -> tuple[list[float], bool]:
    """Return the positive values that the axis has to show, and whether outlying values were left out.

    With outlying values, a few diverging runs would compress the others into a narrow stripe.
    """
    positive = sorted(value for value in values if value is not None and 0 < value < math.inf)
    if not positive:
        return positive, False
    usual = positive[int(OUTLYING * (len(positive) - 1))]
    if positive[-1] <= FAR * usual:
        return positive, False
    return [value for value in positive if value <= 2 * usual], True


VERDICTS = {"continue": "continued", "stop": "stopped"}

#: Every comparison at a rung, in order of time.
JUDGED_SQL = (
    "SELECT rung, trial, decisions.kind AS verdict, metric, cutoff, count, stratum, decided_at, status\n"
    "FROM decisions JOIN (SELECT trial, min(status) AS status FROM trials GROUP BY trial) USING (trial)\n"
    "WHERE decisions.kind IN ('stop', 'continue') AND rung IS NOT NULL AND metric IS NOT NULL AND isfinite(metric)\n"
    "ORDER BY rung, decided_at, trial"
)

#: Savings of early stopping at each rung: epochs summed over replicates, and seconds at each trial's own speed.
SAVED_SQL = (
    "SELECT stop_rung AS rung, count(DISTINCT trial) AS trials, sum({limit} - epochs)::BIGINT AS epochs,\n"
    "  sum(wall_seconds / epochs * ({limit} - epochs)) AS seconds\n"
    "FROM trials WHERE status = 'early_stopped' AND epochs > 0 AND stop_rung >= 0 GROUP BY stop_rung ORDER BY stop_rung"
)


@FIGURES.add("scheduler_audit", place=140, absent="Scheduler audit: no trial was compared with others at a rung.")
def draw_audit(results: Results) -> Figure | None:
    """Return the metric against its cut-off, one panel per rung; None if nothing was compared."""
    goal = objective(results)
    rows = results.rows(JUDGED_SQL)
    if not any(row["cutoff"] is not None or row["verdict"] == "stop" for row in rows):
        return None
    limit = epoch_limit(results)
    queries = [JUDGED_SQL, SAVED_SQL.format(limit=limit)]
    saved = {int_of(row, "rung"): row for row in results.rows(queries[1])}
    final: dict[str, float] = {}
    if goal.metric in results.columns("epochs"):
        queries.append(final_sql(results, goal.metric))
        final = {text_of(row, "trial"): float_of(row, "mean") for row in results.rows(queries[2])}
    stopped = sum(row["verdict"] == "stop" for row in rows)
    return Figure(
        title="What the scheduler stopped",
        caption=(
            f"The {goal.label} of each trial at a rung, in the order in which it was decided: "
            f"{plural(len(rows), 'comparison')}, {stopped} stopped.{cut_offs(rows)}{rule(results)} "
            f"{total(list(saved.values()), results, limit)}"
        ),
        sql=queries,
        tables=["decisions", "trials", "epochs", "evaluations"],
        panels=[
            audit_panel(mine, rung, saved.get(rung), final)
            for rung, mine in grouped(rows, lambda row: int_of(row, "rung")).items()
        ],
        legend=list(VERDICTS.values()),
    )


def rule(results: Results) -> str:
    """Return the scheduler's rule in words, with a leading space; empty if this version does not know the scheduler."""
    name = results.specification.get("scheduler", {}).get("name")
    summary = SCHEDULERS[name].summary if name in SCHEDULERS else ""
    return f" Rule of {name}: {summary[:1].lower()}{summary[1:]}." if summary else ""


def cut_offs(rows: Rows) -> str:
    """Return how trials were compared (cut-offs, or places for promotion), with a leading space."""
    line = any(row["cutoff"] is not None for row in rows)
    said = " Line: the cut-off; it moves because later trials have more competitors." if line else (
        " Trials pause at a rung and the best are promoted, so there is no cut-off: the rest is stopped at the end."
    )  # fmt: skip
    strata = len({row["stratum"] for row in rows if row["stratum"]})
    own_line = ", each with a line of its own" if line else ""
    return f"{said} They compete within {strata} strata{own_line}." if strata else said


def total(saved: Rows, results: Results, limit: int) -> str:
    """Return a sentence on the total saved by early stopping, relative to training every replicate in full."""
    if not saved:
        return "Nothing was saved."
    full = limit * int_of(results.rows("SELECT count(*) AS n FROM trials")[0], "n")
    epochs = sum(int_of(part, "epochs") for part in saved)
    seconds = sum(float_or_none(part, "seconds") or 0.0 for part in saved)
    return (
        f"Early stopping saved {epochs:,} of {full:,} epochs ({epochs / full:.0%} of the full-training budget), about "
        f"{duration(seconds)} of trial time at each trial’s own speed."
    )


def audit_panel(rows: Rows, rung: int, saved: Row | None, final: Mapping[str, float]) -> Panel:
    """Return the panel of one rung: metrics in order of decision, and the cut-off over time."""
    every = [{**row, "place": at, "verdict": VERDICTS[text_of(row, "verdict")]} for at, row in enumerate(rows, 1)]
    judged, few = thin_points(every)
    cutoffs = [
        {"place": row["place"], "metric": row["cutoff"], "stratum": row["stratum"] or "all strata",
         "says": f"cut-off {float_of(row, 'cutoff'):.4g} within {row['stratum'] or 'all strata'}"}
        for row in judged if row["cutoff"] is not None
    ]  # fmt: skip
    look: Json = {"interpolate": "step-after", "strokeWidth": 1.4, "point": "transparent"}
    layers = [
        mark("line", cutoffs, look=look, color=paint("soft"), detail={"field": "stratum"}),
        points(
            judged,
            hover,
            color=colour("verdict", [*VERDICTS.values()]),
            opacity={"value": 1},
            shape=full_where("datum.verdict != 'stopped'"),
        ),
    ]
    log = min(floats([*judged, *cutoffs], "metric")) > 0
    return Panel(
        f"rung {rung}", layers, quantity("place", "order of decision"), quantity("metric", "metric", log=log),
        [*remarks(rows, saved, final), *few],
    )  # fmt: skip


def remarks(rows: Rows, saved: Row | None, final: Mapping[str, float]) -> list[str]:
    """Return the counts of a rung, its savings, and how well it predicted the final rank."""
    stopped = sum(row["verdict"] == "stop" for row in rows)
    cutoffs = [row["cutoff"] for row in rows if row["cutoff"] is not None]
    last = f"; the last cut-off {number(cutoffs[-1])}" if cutoffs else ""
    sentences = [f"{stopped} of {len(rows)} stopped{last}."]
    if saved:
        saved_epochs = f"Saved {int_of(saved, 'epochs'):,} epochs"
        seconds = float_or_none(saved, "seconds")
        sentences.append(f"{saved_epochs}, about {duration(seconds)}." if seconds else f"{saved_epochs}.")
    pairs = [(float_of(row, "metric"), final[text_of(row, "trial")]) for row in rows if row["trial"] in final]
    pairs = [*dict.fromkeys(pairs)]  # equal rows are one repeated training
    rho = correlation([a for a, _ in pairs], [b for _, b in pairs])
    if rho is not None:
        only = " Stopped trials have no final value." if stopped else ""
        sentences.append(f"Rank at this rung against final rank, finished trials: {rho.text()}.{only}")
    return sentences


def hover(row: Row) -> str:
    """Return a point's tooltip."""
    others = int_of(row, "count") - 1
    by_place = f"compared with {others or 'none'}"  # where trials are promoted
    by_value = f"cut-off {number(row['cutoff'])} of {others} competitors"
    against = by_place if row["cutoff"] is None else by_value
    against += f", within {row['stratum']}" if row["stratum"] else ""
    return f"{row['trial']} {row['verdict']}\nmetric {number(row['metric'])}, {against}"

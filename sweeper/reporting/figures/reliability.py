"""Reliability diagrams of the best run and of the best cross-entropy run, before and after temperature scaling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from sweeper.analysis.statistics.basics import spread
from sweeper.reporting.figure_parts.figure import Figure, Panel, axis, plot
from sweeper.results import Results
from sweeper.results.leaderboard import Leaderboard, leaderboard
from sweeper.text.cells import Row, Rows, float_of, int_of, text_of
from sweeper.text.labels import STATUS_WORDS, plural
from trainables.metrics import evaluate_probabilities, reliability_bins, softmax64

ABSENT = "Reliability diagrams: no trial has been evaluated on test data."


def draw(results: Results) -> Figure | None:
    """Return the diagrams of the best and the best cross-entropy configuration; None without test evaluations."""
    board = leaderboard(results)
    panels: list[Panel] = []
    queries: list[str] = []
    for role, row in chosen(board):
        before_sql = bins_sql(row)
        before = results.rows(before_sql)
        if not sum(int_of(line, "n") for line in before):
            continue
        queries.append(before_sql)
        replicates = plural(int_of(row, "replicates"), "replicate")
        remarks = [
            f"{board.describe(row)}, {STATUS_WORDS[text_of(row, 'status')]}, epoch {row['epochs']}.",
            f"ECE {board.value(row, 'test_ece')}, {replicates} pooled in the diagram.",
        ]
        panels.append(diagram(f"{role}, {row['trial']}: before", before, remarks))
        after_sql = predictions_sql(row)
        after, calibrated = after_temperature(results, after_sql, len(before))
        if after:
            queries.append(after_sql)
            panels.append(diagram(f"{role}, {row['trial']}: after temperature scaling", after, calibrated))
    if not panels:
        return None
    return Figure(
        key="reliability",
        title="Reliability diagrams",
        caption=(
            "Accuracy against confidence on test data in equal-width bins; a perfectly calibrated network lies on the "
            "diagonal; points below it are over-confident. Shaded: the share of samples in each bin."
        ),
        sql=queries,
        tables=["reliability", "predictions", "evaluations"],
        panels=panels,
    )


def chosen(board: Leaderboard) -> list[tuple[str, Row]]:
    """Return the best configuration and, where it is another one, the best trained with cross-entropy."""
    if board.best is None:
        return []
    plain = [row for row in (*board.finished, *board.rows) if row["loss"] == "cross_entropy"]
    picked = [("Best", board.best)]
    if plain and plain[0]["trial"] != board.best["trial"]:
        picked.append(("Best with cross-entropy", plain[0]))
    return picked


def bins_sql(row: Row) -> str:
    """Return the query of a configuration's test bins, its replicates pooled."""
    return (
        "SELECT bin, any_value(lower) AS lower, any_value(upper) AS upper, sum(n)::BIGINT AS n,\n"
        "  sum(n * confidence) / nullif(sum(n), 0) AS confidence, sum(n * accuracy) / nullif(sum(n), 0) AS accuracy\n"
        f"FROM reliability WHERE trial = '{row['trial']}' AND epoch = {row['epochs']} AND split = 'test'\n"
        "GROUP BY bin ORDER BY bin"
    )


def predictions_sql(row: Row) -> str:
    """Return the query of a configuration's test logits, each with its replicate's fitted temperature."""
    return (
        "SELECT replicate, posthoc_temperature_temperature AS temperature, target, logits\n"
        "FROM predictions JOIN evaluations USING (trial, replicate, epoch, split)\n"
        f"WHERE trial = '{row['trial']}' AND epoch = {row['epochs']} AND split = 'test'\n"
        "ORDER BY replicate, sample"
    )


def after_temperature(results: Results, sql: str, bins: int) -> tuple[Rows, list[str]]:
    """Return the pooled test bins of softmax(logits / T) and remarks with T and ECE; empty without predictions or T."""
    if "posthoc_temperature_temperature" not in results.columns("evaluations"):
        return [], []
    table = results.sql(sql)
    temperature = table["temperature"].to_numpy().astype(np.float64)
    if not table.num_rows or np.isnan(temperature).any():
        return [], []
    logits = np.stack(table["logits"].to_numpy()).astype(np.float64)
    targets = table["target"].to_numpy()
    probabilities = softmax64(logits / temperature[:, None])
    replicate = table["replicate"].to_numpy()
    each = {int(r): float(temperature[replicate == r][0]) for r in np.unique(replicate)}
    parts = [(probabilities[replicate == r], targets[replicate == r]) for r in each]
    ece = spread([evaluate_probabilities(*part, bins)["ece"] for part in parts])
    values = ", ".join(f"{value:.3g}" for value in each.values())
    return reliability_bins(probabilities, targets, bins), [
        f"T = {values}, fitted on validation data, one per replicate.",
        f"ECE {ece.text()}, {plural(ece.n, 'replicate')} pooled in the diagram.",
    ]


def diagram(heading: str, bins: Rows, remarks: Sequence[str]) -> Panel:
    """Return one reliability diagram: accuracy by bin, the diagonal, and the share of samples as bars."""
    filled = [row for row in bins if row["n"]]
    total = sum(int_of(row, "n") for row in filled)
    edges = [(float_of(row, "lower"), float_of(row, "upper")) for row in bins]
    centre = [(lower + upper) / 2 for lower, upper in edges]
    share = go.Bar(
        x=centre, y=[int_of(row, "n") / total for row in bins], width=[upper - lower for lower, upper in edges],
        marker={"color": "var(--shade)", "line": {"color": "var(--card)", "width": 1}}, name="share of samples",
        hovertemplate="%{y:.1%} of the samples<extra></extra>",
    )  # fmt: skip
    ideal = go.Scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": "var(--axis)", "dash": "dash", "width": 1.2},
        hoverinfo="skip", name="perfect calibration",
    )  # fmt: skip
    gaps = go.Scatter(
        x=[value for row in filled for value in (row["confidence"], row["confidence"], None)],
        y=[value for row in filled for value in (row["confidence"], row["accuracy"], None)],
        mode="lines", line={"color": "var(--series-2)", "width": 3}, hoverinfo="skip", name="gap", opacity=0.55,
    )  # fmt: skip
    points = go.Scatter(
        x=[row["confidence"] for row in filled], y=[row["accuracy"] for row in filled], mode="lines+markers",
        marker={"color": "var(--series-1)", "size": 8}, line={"color": "var(--series-1)", "width": 1.5},
        text=[f"({lower:.2f}, {upper:.2f}], n = {row['n']}" for (lower, upper), row in zip(edges, bins, strict=True)
              if row["n"]],
        name="accuracy",
        hovertemplate="%{text}<br>confidence %{x:.3f}<br>accuracy %{y:.3f}<extra></extra>",
    )  # fmt: skip
    drawn = plot(
        [share, ideal, gaps, points],
        axis("confidence", range=[0, 1.02], dtick=0.2),
        axis("accuracy", range=[0, 1.04], dtick=0.2),
    )
    return Panel(heading, [*remarks, f"n = {total:,} predictions."], drawn)

"""Each loss family against cross-entropy on test data, with intervals and p-values corrected for being many."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from sweeper.families import FamilyComparison, compare_families, reference_of
from sweeper.leaderboard import Leaderboard, label, leaderboard
from sweeper.paired import p_text
from sweeper.report.figure import Figure, Panel, axis, colour, plot, plural
from sweeper.results import Results

ABSENT = "Loss families compared: fewer than two families with two finished configurations each."

METRICS = ("test_ece", "test_nll", "test_accuracy")


def draw(results: Results) -> Figure | None:
    """Return the differences from the reference family, one panel a metric; None where nothing can be compared."""
    board = leaderboard(results)
    reference = reference_of(board.finished)
    if reference is None:
        return None
    panels, tested = [], set()
    for metric in METRICS:
        found = compare_families(board.finished, board.varying, metric, board.objective.mode)
        if found:
            panels.append(panel(found, metric, reference))
            tested |= {item.paired for item in found}
    if not panels:
        return None
    return Figure(
        key="loss-families",
        title="Loss families compared",
        caption=(
            f"Mean difference from {reference} on test data with 95 % intervals; finished configurations only, each "
            f"the mean of its replicates. {how(tested, board)} p: permutation tests, corrected over the families of a "
            "panel by Holm’s method. Seeds differ between the configurations of a sweep, so none is paired by seed."
        ),
        sql=[board.sql],
        tables=["evaluations", "trials"],
        panels=panels,
    )


def how(tested: set[bool], board: Leaderboard) -> str:
    """Return how the configurations were set against each other."""
    parts = []
    if True in tested:
        parts.append(
            "Paired by equal other settings: in each, a family stands with its best configuration by "
            f"{board.objective.label}."
        )
    if False in tested:
        parts.append("Not paired, because other settings differ: all configurations of a family against all others.")
        if any(row["status"] == "early_stopped" for row in board.rows):
            parts.append("Early stopping kept the best of each: these are survivors, not samples of their family.")
    return " ".join(parts)


def panel(found: Sequence[FamilyComparison], metric: str, reference: str) -> Panel:
    """Return one metric: a point and an interval a family."""
    shown = found[::-1]
    means = [item.difference.mean for item in shown]
    limits = [item.difference.interval or (item.difference.mean,) * 2 for item in shown]
    points = go.Scatter(
        x=means, y=[item.family for item in shown], mode="markers",
        marker={"color": colour(0), "size": 9},
        error_x={
            "type": "data", "array": [high - mean for mean, (_, high) in zip(means, limits, strict=True)],
            "arrayminus": [mean - low for mean, (low, _) in zip(means, limits, strict=True)],
            "color": colour(0), "thickness": 1.5, "width": 4,
        },
        text=[sentence(item) for item in shown], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    split, _, name = metric.partition("_")
    words = f"{split} {label(name)}"
    line = {"type": "line", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "yref": "paper", "layer": "below",
            "line": {"color": "var(--axis)", "width": 1.2, "dash": "dash"}}  # fmt: skip
    x = axis(f"difference from {reference}")
    drawn = plot([points], x, axis("", type="category"), shapes=[line])
    return Panel(words, [f"{sentence(item)}." for item in found], drawn)


def sentence(item: FamilyComparison) -> str:
    """Return one comparison in words, e.g. `focal: −0.01 (95 % … , n = 4 pairs), p = 0.02`."""
    mine, other = item.configurations
    size = plural(item.difference.n, "pair") if item.paired else f"{mine} against {other}"
    low, high = item.difference.interval or (float("nan"), float("nan"))
    text = f"{item.difference.mean:+.3g} (95 % {low:+.3g} … {high:+.3g}, n = {size})".replace("-", "−")
    return f"{item.family}: {text}, {p_text(item.corrected)}"

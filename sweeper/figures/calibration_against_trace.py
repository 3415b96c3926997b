"""Calibration error against the Hessian's trace, log–log with a cubic fit: curvature paper, figure 3."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.analysis.statistics.basics import log_log_fit
from sweeper.figures.base import FIGURES, Curve, Figure, Panel, categories, counted, log_axis, statuses, thin_points
from sweeper.figures.configurations import (
    HESSIANS,
    configuration_points,
    configuration_rows,
    measured_hessians,
    one_sample_size,
    sample_size_remark,
)
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED
from sweeper.text.cells import Rows, float_or_none, floats


@FIGURES.add("calibration_against_trace", place=30, absent="ECE against Tr(H): no Hessian was measured.")
def draw(results: Results) -> Figure | None:
    """Return validation ECE against Tr(H), one panel a Hessian; None without curvature."""
    hessians = measured_hessians(results)
    if not hessians:
        return None
    sql, rows = configuration_rows(results, "ece > 0")
    rows, left_out = one_sample_size(rows)
    if not rows:
        return None
    architectures = categories(rows, "architecture")
    return Figure(
        key="calibration-against-trace",
        title="Calibration error against Tr(H)",
        caption=(
            f"Validation ECE against the trace of the validation Hessian, log–log: {counted(rows)}, means over "
            "replicates. Lines: least-squares cubic in log Tr(H) for each architecture, finished trials only. "
            f"{sample_size_remark(rows, left_out)}"
        ),
        sql=[sql],
        panels=[panel(rows, loss, architectures) for loss in hessians],
        legend=architectures,
        statuses=statuses(rows),
    )


def panel(rows: Rows, loss: str, architectures: Sequence[str]) -> Panel:
    """Return ECE against the trace of one loss's Hessian, with the fits."""
    column = f"hessian_{loss}_trace"
    shown = [row for row in rows if (float_or_none(row, column) or 0) > 0]
    fits, remarks = fitted(shown, column, architectures)
    points, few = thin_points(shown)
    marks = [*configuration_points(points, column, "ece", architectures), *fits]
    if len(shown) < len(rows):
        remarks.append(f"{len(rows) - len(shown)} with Tr(H) ≤ 0 cannot be drawn on a log scale.")
    x = log_axis("Tr(H)", (float_or_none(row, column) for row in shown))
    y = log_axis("validation ECE", (float_or_none(row, "ece") for row in shown))
    return Panel(HESSIANS[loss], [*remarks, *few], marks, x, y, points=len(shown))


def fitted(rows: Rows, column: str, architectures: Sequence[str]) -> tuple[list[Curve], list[str]]:
    """Return the fitted curves and a remark on each."""
    curves: list[Curve] = []
    remarks: list[str] = []
    for index, architecture in enumerate(architectures):
        mine = [row for row in rows if str(row["architecture"]) == architecture and row["status"] == FINISHED]
        fit = log_log_fit(floats(mine, column), floats(mine, "ece"))
        if fit is None:
            remarks.append(f"{architecture}: too few finished trials for a cubic fit (n = {len(mine)}).")
            continue
        remarks.append(f"{architecture}: cubic R² = {fit.r_squared:.2f}, n = {fit.n}.")
        curves.append(Curve(*fit.curve(), index, line=2, status=FINISHED, group=architecture))
    return curves, remarks

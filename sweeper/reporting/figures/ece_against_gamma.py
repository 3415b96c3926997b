"""Expected calibration error against γ by architecture: curvature paper, figure 2, right axis."""

from __future__ import annotations

from collections.abc import Sequence

from sweeper.reporting.figure_parts.configurations import (
    GAMMA_CONDITION,
    GAMMA_REMARK,
    at_gamma_zero,
    configuration_rows,
    gamma_axis,
    only_gamma_varies,
    rank_correlations,
)
from sweeper.reporting.figure_parts.figure import Figure, Panel, axis, categories, counted, plot, statuses, thinned
from sweeper.reporting.figure_parts.scatter import configuration_traces
from sweeper.results import Results
from sweeper.text.cells import Rows

ABSENT = "ECE against γ: no loss of this sweep has a γ."


def draw(results: Results) -> Figure | None:
    """Return validation ECE against γ, one panel per loss family; None where no loss has a γ."""
    if "config_loss_gamma" not in results.columns("trials"):
        return None
    sql, rows = configuration_rows(results, f"{GAMMA_CONDITION} AND ece IS NOT NULL")
    zero, rows = at_gamma_zero(rows), [row for row in rows if row["gamma"] is not None]
    if not rows:
        return None
    architectures = categories([*rows, *zero], "architecture")
    line = only_gamma_varies(results)
    return Figure(
        key="ece-against-gamma",
        title="Calibration error against γ",
        caption=(
            "Expected calibration error on validation data, before any post-hoc method, against γ: mean ± standard "
            f"deviation over the replicates of {counted(rows)}, with Spearman’s rank correlation ρ."
            + (f" {GAMMA_REMARK}" if zero else "")
        ),
        sql=[sql],
        tables=["evaluations", "trials"],
        panels=[panel(rows, zero, family, architectures, line) for family in categories(rows, "loss")],
        legend=architectures,
        statuses=statuses([*rows, *zero]),
    )


def panel(rows: Rows, zero: Rows, family: str, architectures: Sequence[str], line: bool) -> Panel:
    """Return one family's ECE against γ, with a line through finished trials if `line`."""
    shown = [row for row in rows if row["loss"] == family]
    (squares, fewer), (points, few) = thinned(zero), thinned(shown)
    traces = [
        *configuration_traces(squares, "gamma", "ece", architectures, shape="square"),
        *configuration_traces(points, "gamma", "ece", architectures, connect=line),
    ]
    drawn = plot(traces, gamma_axis(shown), axis("validation ECE", rangemode="tozero"))
    remarks = [*rank_correlations(shown, "gamma", "ece"), *few, *(f"At γ = 0: {remark}" for remark in fewer)]
    return Panel(family, remarks, drawn)

"""Expected calibration error against γ by architecture: curvature paper, figure 2, right axis."""

from __future__ import annotations

from sweeper.report.configurations import configuration_rows, rank_correlations
from sweeper.report.figure import Figure, Panel, axis, categories, counted, plot, statuses
from sweeper.report.scatter import configuration_traces
from sweeper.results import Results

ABSENT = "ECE against γ: no loss of this sweep has a γ."


def draw(results: Results) -> Figure | None:
    """Return validation ECE against γ, one panel a loss family; None where no loss has a γ."""
    if "config_loss_gamma" not in results.columns("trials"):
        return None
    sql, rows = configuration_rows(results, "config_loss_gamma IS NOT NULL AND ece IS NOT NULL")
    if not rows:
        return None
    architectures = categories(rows, "architecture")
    panels = []
    for family in categories(rows, "loss"):
        shown = [row for row in rows if row["loss"] == family]
        drawn = plot(
            configuration_traces(shown, "gamma", "ece", architectures, connect=True),
            axis("γ", rangemode="tozero"),
            axis("validation ECE", rangemode="tozero"),
        )
        panels.append(Panel(family, rank_correlations(shown, "gamma", "ece"), drawn))
    return Figure(
        key="ece-against-gamma",
        title="Calibration error against γ",
        caption=(
            "Expected calibration error on validation data, before any post-hoc method, against γ: mean ± standard "
            f"deviation over the replicates of {counted(rows)}."
        ),
        sql=[sql],
        tables=["evaluations", "trials"],
        panels=panels,
        legend=architectures,
        statuses=statuses(rows),
    )

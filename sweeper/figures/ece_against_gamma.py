"""Expected calibration error against γ by architecture: curvature paper, figure 2, right axis."""

from __future__ import annotations

from sweeper.figures.base import FIGURES, Axis, Figure, categories, counted, statuses
from sweeper.figures.configurations import (
    GAMMA_CONDITION,
    GAMMA_REMARK,
    at_gamma_zero,
    configuration_rows,
    gamma_panel,
    only_gamma_varies,
)
from sweeper.results import Results


@FIGURES.add("ece_against_gamma", place=20, absent="ECE against γ: no loss of this sweep has a γ.")
def draw(results: Results) -> Figure | None:
    """Return validation ECE against γ, one panel per loss family; None where no loss has a γ."""
    if "config_loss_gamma" not in results.columns("trials"):
        return None
    sql, rows = configuration_rows(results, f"{GAMMA_CONDITION} AND ece IS NOT NULL")
    zero, rows = at_gamma_zero(rows), [row for row in rows if row["gamma"] is not None]
    if not rows:
        return None
    architectures, line = categories([*rows, *zero], "architecture"), only_gamma_varies(results)
    families = {family: [row for row in rows if row["loss"] == family] for family in categories(rows, "loss")}
    y = Axis("validation ECE", from_zero=True)
    return Figure(
        key="ece-against-gamma",
        title="Calibration error against γ",
        caption=(
            "Expected calibration error on validation data, before any post-hoc method, against γ: mean ± standard "
            f"deviation over the replicates of {counted(rows)}, with Spearman’s rank correlation ρ."
            + (f" {GAMMA_REMARK}" if zero else "")
        ),
        sql=[sql],
        panels=[gamma_panel(name, mine, zero, "ece", architectures, y, line=line) for name, mine in families.items()],
        legend=architectures,
        statuses=statuses([*rows, *zero]),
    )

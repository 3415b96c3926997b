"""λ_max of the validation Hessian against γ: curvature paper, figure 2, with the cross-entropy Hessian next to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sweeper.analysis.statistics.basics import MINIMUM_PAIRS
from sweeper.figures.base import FIGURES, Figure, Panel, categories, counted, log_axis, statuses
from sweeper.figures.configurations import (
    GAMMA_CONDITION,
    GAMMA_REMARK,
    HESSIANS,
    at_gamma_zero,
    configuration_rows,
    correlated,
    gamma_panel,
    measured_hessians,
    one_sample_size,
    only_gamma_varies,
    sample_size_remark,
)
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED
from sweeper.text.cells import Rows, float_or_none

NAMES = {"training": "the training loss’s Hessian", "cross_entropy": "cross-entropy’s Hessian"}


@FIGURES.add(
    "curvature_against_gamma",
    place=10,
    absent="λ_max against γ: no trial has both a γ and a measured Hessian.",
    aliases=("lambda_max_against_gamma",),
)
def draw(results: Results) -> Figure | None:
    """Return λ_max against γ, one panel per focal-type loss family and Hessian; None without γ or curvature."""
    hessians = measured_hessians(results)
    if "config_loss_gamma" not in results.columns("trials") or not hessians:
        return None
    sql, rows = configuration_rows(results, GAMMA_CONDITION)
    measured = [f"hessian_{loss}_lambda_max" for loss in hessians]
    rows, left_out = one_sample_size([row for row in rows if any(row[name] is not None for name in measured)])
    zero, rows = at_gamma_zero(rows), [row for row in rows if row["gamma"] is not None]
    if not rows:
        return None
    architectures = categories([*rows, *zero], "architecture")
    families, line = categories(rows, "loss"), only_gamma_varies(results)
    return Figure(
        key="curvature-against-gamma",
        title="λ_max against γ",
        caption=(
            "Largest eigenvalue of the validation Hessian against γ: mean ± standard deviation over the replicates of "
            f"{counted(rows)}, with Spearman’s rank correlation ρ. The training loss’s Hessian shrinks with γ in part "
            "because the loss itself does; cross-entropy’s is comparable across γ. "
            f"{sample_size_remark(rows, left_out)}" + (f" {GAMMA_REMARK}" if zero else "")
        ),
        sql=[sql],
        panels=[panel(rows, zero, family, loss, architectures, line) for family in families for loss in hessians],
        findings=findings(rows, families, list(hessians)),
        legend=architectures,
        statuses=statuses([*rows, *zero]),
    )


def panel(rows: Rows, zero: Rows, family: str, loss: str, architectures: Sequence[str], line: bool) -> Panel:
    """Return one family's λ_max of one Hessian against γ, with a line through finished trials if `line`."""
    column = f"hessian_{loss}_lambda_max"
    mine = [row for row in rows if row["loss"] == family]
    shown = [row for row in mine if (float_or_none(row, column) or 0) > 0]
    plain = [row for row in zero if (float_or_none(row, column) or 0) > 0]
    y = log_axis("λ<sub>max</sub>", (float_or_none(row, column) for row in (*shown, *plain)))
    drawn = gamma_panel(f"{family}: {HESSIANS[loss]}", shown, plain, column, architectures, y, line=line)
    if len(shown) == len(mine):
        return drawn
    missing = f"{len(mine) - len(shown)} with λ_max ≤ 0 cannot be drawn on a log scale."
    return replace(drawn, remarks=[*drawn.remarks, missing])


def findings(rows: Rows, families: Sequence[str], hessians: Sequence[str]) -> list[str]:
    """Return the rank correlations of γ and λ_max among finished trials, where there are enough for one."""
    sentences: list[str] = []
    for family in families:
        for architecture in categories(rows, "architecture"):
            chosen = [row for row in rows if row["loss"] == family and str(row["architecture"]) == architecture]
            chosen = [row for row in chosen if row["status"] == FINISHED]
            if len(chosen) < MINIMUM_PAIRS:
                continue
            texts = [f"{correlated(chosen, 'gamma', f'hessian_{h}_lambda_max')} for {NAMES[h]}" for h in hessians]
            sentences.append(f"γ of {family} and λ_max on {architecture}, Spearman: {', '.join(texts)}.")
    return sentences

"""λ_max of the validation Hessian against γ: curvature paper, figure 2, with the cross-entropy Hessian beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeper.leaderboard import FINISHED
from sweeper.report.configurations import (
    Rows,
    configuration_rows,
    has_curvature,
    one_sample_size,
    rank_correlations,
    sample_size_remark,
)
from sweeper.report.figure import Figure, Panel, axis, categories, counted, plot, statuses
from sweeper.report.scatter import configuration_traces
from sweeper.results import Results

ABSENT = "λ_max against γ: no trial has both a γ and a measured Hessian."

LOSSES = {"training": "training loss's Hessian", "cross_entropy": "cross-entropy's Hessian"}


def draw(results: Results) -> Figure | None:
    """Return λ_max against γ, one panel a focal-type loss family and Hessian; None without γ or curvature."""
    if "config_loss_gamma" not in results.columns("trials") or not has_curvature(results):
        return None
    sql, rows = configuration_rows(results, "config_loss_gamma IS NOT NULL")
    rows, left_out = one_sample_size(rows)
    rows = [row for row in rows if row["hessian_training_lambda_max"] is not None]
    if not rows:
        return None
    architectures = categories(rows, "architecture")
    families = categories(rows, "loss")
    panels = [panel(rows, family, loss, architectures) for family in families for loss in LOSSES]
    caption = (
        "Largest eigenvalue of the validation Hessian against γ: mean ± standard deviation over the replicates of "
        f"{counted(rows)}. The Hessian of the training loss shrinks with γ partly by the loss's own scale; that of "
        f"cross-entropy is comparable across γ. {sample_size_remark(rows, left_out)}"
    )
    return Figure(
        key="curvature-against-gamma",
        title="λ_max against γ",
        caption=caption,
        sql=[sql],
        tables=["evaluations", "trials"],
        panels=panels,
        finding=finding(rows, families),
        legend=architectures,
        statuses=statuses(rows),
    )


def panel(rows: Rows, family: str, loss: str, architectures: Sequence[str]) -> Panel:
    """Return one family's λ_max of one Hessian against γ."""
    column = f"hessian_{loss}_lambda_max"
    shown = [row for row in rows if row["loss"] == family and (row[column] or 0) > 0]
    traces = configuration_traces(shown, "gamma", column, architectures, connect=True)
    drawn = plot(traces, axis("γ", rangemode="tozero"), axis("λ_max", log=True))
    dropped = sum(row["loss"] == family for row in rows) - len(shown)
    remark = rank_correlations(shown, "gamma", column)
    if dropped:
        remark += f" {dropped} with λ_max ≤ 0 cannot be drawn on this scale."
    return Panel(f"{family}: {LOSSES[loss]}", remark, drawn)


def finding(rows: Rows, families: Sequence[str]) -> str:
    """Return one sentence on the rank correlation of γ and λ_max among finished trials, both Hessians."""
    sentences: list[str] = []
    for family in families:
        chosen: list[dict[str, Any]] = [r for r in rows if r["loss"] == family and r["status"] == FINISHED]
        texts = [rank_correlations(chosen, "gamma", f"hessian_{loss}_lambda_max", pooled=True) for loss in LOSSES]
        if all(texts):
            sentences.append(
                f"γ of {family} and λ_max, finished trials, Spearman: training loss {texts[0]}; "
                f"cross-entropy {texts[1]}."
            )
    return " ".join(sentences)

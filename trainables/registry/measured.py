"""What an objective's name says: where among the evaluations its value stands."""

from __future__ import annotations

CROSS_FITTED = "cross_fitted_"
"""What columns of cross-fitted post-hoc methods begin with, in place of `posthoc_`, where the fit saw all samples."""


def measured_as(metric: str) -> tuple[str, str]:
    """Return the split and the column of `evaluations` that hold an objective.

    `val_ece` is `ece` on `val`. A post-hoc method's metric on the split that it is fitted on is that of its cross-fit:
    `val_posthoc_temperature_ece` is `cross_fitted_temperature_ece`. The Hessian, `hessian_training_trace`, is taken on
    validation data alone and bears no split.
    """
    if metric.startswith("hessian_"):
        return "val", metric
    split, _, column = metric.partition("_")
    if split == "val" and column.startswith("posthoc_"):
        column = CROSS_FITTED + column.removeprefix("posthoc_")
    return split, column

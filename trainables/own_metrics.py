"""Metrics of a user's own, measured in every evaluation beside those of `trainables.metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainables.registry import Registry, column_label

METRICS = Registry("metric", "metrics")
"""Every evaluation measures the project's own metrics anyway; these come on top of them."""

Metrics = tuple[tuple[str, Mapping[str, Any]], ...]
"""Names with their options."""

UNAVAILABLE = "metrics_unavailable"
"""The column that says why a metric of the user's own is empty."""


def own_metric_columns(metrics: Metrics, probabilities: Any, targets: Any, prefix: str = "") -> dict[str, Any]:
    """Return the columns of `metrics`: one number each, and the reason where one could not be computed.

    Args:
        metrics: names and options.
        probabilities: float64 [N, K].
        targets: int64 [N].
        prefix: of the columns' names, for probabilities after a post-hoc method.
    """
    row: dict[str, Any] = {}
    reasons = []
    for name, options in metrics:
        column = prefix + column_label(name)
        try:
            row[column] = METRICS.build(name, probabilities, targets, **options)
        except ValueError as error:
            reasons.append(f"{column}: {error}")
    if reasons:
        row[f"{prefix}{UNAVAILABLE}"] = "; ".join(reasons)
    return row


def own_metric_names(names: Iterable[str], prefix: str = "") -> tuple[str, ...]:
    """Return the names of the columns that metrics of these names fill; none where there are no metrics."""
    labels = [prefix + column_label(name) for name in names]
    return (*labels, f"{prefix}{UNAVAILABLE}") if labels else ()

"""Metrics that an evaluation measures only where a search space asks for them: with options, or users' own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from trainables.metrics.binning import Norm, Scheme, calibration_error
from trainables.metrics.own import OWN_METRICS
from trainables.metrics.probabilities import Floats, Integers
from trainables.metrics.selective import risk_at_coverage
from trainables.registry import Component, Hyperparameter, HyperparameterValue, Registry, column_label

METRICS = Registry("metric", OWN_METRICS)
"""What `evaluation.metrics` may name."""

Metrics = tuple[tuple[str, Mapping[str, HyperparameterValue]], ...]
"""Names with their options."""

UNAVAILABLE = "metrics_unavailable"
"""The column that says why one of them is empty."""


def further_metric_columns(
    metrics: Metrics, probabilities: Floats, targets: Integers, prefix: str = ""
) -> dict[str, float | str]:
    """Return the columns of `metrics`: one number each, and the reason where one could not be computed.

    Args:
        metrics: names and options.
        probabilities: float64 [N, K].
        targets: int64 [N].
        prefix: of the columns' names, for probabilities after a post-hoc method.
    """
    row: dict[str, float | str] = {}
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


def further_metric_names(names: Iterable[str], prefix: str = "") -> tuple[str, ...]:
    """Return the names of the columns that metrics of these names fill; none where there are no metrics."""
    labels = [prefix + column_label(name) for name in names]
    return (*labels, f"{prefix}{UNAVAILABLE}") if labels else ()


def binned_error(
    probabilities: Floats,
    targets: Integers,
    bins: int = 15,
    scheme: Scheme = "equal_width",
    norm: Norm = "root_mean_square",
) -> float:
    """Return the `calibration_error` of the top confidence of probabilities [N, K] against targets [N]."""
    correct = (probabilities.argmax(axis=1) == targets).astype(np.float64)
    return calibration_error(probabilities.max(axis=1), correct, bins, scheme, norm=norm)


_SHARE = "it is the share of samples that are accepted"
_OURS = "our choice: one sample in five is rejected"

METRICS.register(
    Component(
        "risk_at_coverage",
        risk_at_coverage,
        (Hyperparameter("coverage", "number", 0.8, 0.0, 1.0, True, reason=_SHARE, source=_OURS),),
        "error rate among the most confident share of samples",
        "Geifman & El-Yaniv 2017, arXiv:1705.08500",
    )
)
METRICS.register(
    Component(
        "calibration_error",
        binned_error,
        (
            Hyperparameter("bins", "integer", 15, minimum=1, source="Guo et al. 2017, section 5"),
            Hyperparameter("scheme", "text", "equal_width", choices=("equal_width", "equal_mass"), source="mukhoti §3"),
            Hyperparameter(
                "norm",
                "text",
                "root_mean_square",
                choices=("mean", "maximum", "root_mean_square"),
                source="Hendrycks et al. 2019, arXiv:1812.04606",
            ),
        ),
        "calibration error with the bins and norm you choose; `ece`, `ada_ece` and `mce` are always measured",
        "Naeini et al. 2015; Hendrycks et al. 2019",
    )
)

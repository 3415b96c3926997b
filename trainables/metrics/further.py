"""Metrics that an evaluation measures only where a search space asks for them: with options, or users' own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from trainables.metrics.binning import Norm, Scheme, calibration_error
from trainables.metrics.debiased import classwise_debiased_l2, debiased_l2, ece_bias
from trainables.metrics.kernel import kernel_calibration_p, squared_kernel_calibration_error
from trainables.metrics.own import OWN_METRICS
from trainables.metrics.probabilities import Floats, Integers
from trainables.metrics.selective import area_under_generalised_risk_coverage, confidence_auroc, risk_at_coverage
from trainables.metrics.smooth import classwise_smooth_ece, smooth_ece
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
    labels = [f"{prefix}{column}" for name in names for column in (column_label(name), *_more_columns(name))]
    return (*labels, f"{prefix}{UNAVAILABLE}") if labels else ()


def _more_columns(name: str) -> tuple[str, ...]:
    return () if METRICS.is_own(name) else METRICS[name].columns


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
_BINS = Hyperparameter("bins", "integer", 15, minimum=1, source="Guo et al. 2017, section 5")

METRICS.register(
    Component(
        "calibration_error",
        binned_error,
        (
            _BINS,
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

_SCHEMES = ("equal_width", "equal_mass")
_SCHEME = Hyperparameter("scheme", "text", "equal_mass", choices=_SCHEMES, source="Kumar, Liang & Ma 2019")
_SEED = Hyperparameter("seed", "integer", 0, minimum=0, source="arbitrary")
_BLOCK = Hyperparameter("block", "integer", 10, minimum=2, source="ours: pairs (Widmann et al., lemma 4) see little")
_SMOOTH, _KUMAR = "Błasiok & Nakkiran 2023, arXiv:2309.12236", "Kumar, Liang & Ma 2019, arXiv:1909.10155"
_WIDMANN = "Widmann, Lindsten & Zachariah 2019, arXiv:1910.11385"

for _component in (
    Component("smooth_ece", smooth_ece, (), "calibration error without bins, of the top confidence", _SMOOTH),
    Component("cw_smooth_ece", classwise_smooth_ece, (), "smooth_ece of each class, averaged", _SMOOTH),
    Component(
        "debiased_l2", debiased_l2, (_BINS, _SCHEME), "root of the binned squared error less label noise", _KUMAR
    ),
    Component("cw_debiased_l2", classwise_debiased_l2, (_BINS, _SCHEME), "debiased_l2 over classes", _KUMAR),
    Component(
        "ece_bias",
        ece_bias,
        (
            _BINS,
            replace(_SCHEME, default="equal_width", source="Guo et al. 2017, section 5"),
            Hyperparameter("repetitions", "integer", 200, minimum=1, source="an error of 2 % of the bias"),
            _SEED,
        ),
        "the ECE that these confidences would have if they were right: compare `ece` with it",
        "Vaicenavicius et al. 2019, arXiv:1902.06977",
    ),
    Component(
        "skce",
        squared_kernel_calibration_error,
        (),
        "squared kernel calibration error of all probabilities, unbiased: may be below 0",
        _WIDMANN,
    ),
    Component(
        "skce_p", kernel_calibration_p, (_BLOCK, _SEED), "p of the hypothesis of calibration, by blocks", _WIDMANN
    ),
    Component(
        "confidence_auroc",
        confidence_auroc,
        (),
        "how well confidence separates correct from wrong predictions; larger is better",
        "Hendrycks & Gimpel 2017, arXiv:1610.02136",
    ),
    Component(
        "augrc",
        area_under_generalised_risk_coverage,
        (),
        "share of samples both accepted and wrong, averaged over coverages",
        "Traub et al. 2024, arXiv:2407.01032",
    ),
):
    METRICS.register(_component)

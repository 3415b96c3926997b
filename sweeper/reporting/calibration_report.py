"""The calibration of any classifier's probabilities in one call: a table, a reliability diagram, HTML in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from rich.console import RenderableType

from sweeper.core.display import as_html, as_text, plain_table
from sweeper.core.statistics.basics import spread_text
from sweeper.reporting.figures.base import Figure, Panel
from sweeper.reporting.figures.best_runs import diagram, isotonic
from sweeper.reporting.figures.drawing import svg_text
from sweeper.reporting.html import write_figure
from trainables.metrics import METRIC_NAMES, METRICS
from trainables.metrics.base import Floats, Integers, UnusablePredictions, columns_of, metric_of, top_confidence
from trainables.metrics.evaluate import bins_of, bootstrap_standard_error, evaluate_probabilities
from trainables.metrics.two_classes import as_two_classes
from trainables.metrics.weighted import weighted_metrics

#: Metrics of every report, and those of two classes.
USUAL = ("accuracy", "nll", "brier", "ece", "ece_bias", "ada_ece", "aurc")
OF_TWO_CLASSES = ("ece_positive", "calibration_slope", "calibration_intercept")

#: Resamples of the standard errors: their own error is about 2 %.
REPETITIONS = 1000


@dataclass(frozen=True)
class CalibrationReport:
    """How well probabilities are calibrated; a notebook shows the table and the reliability diagram.

    Attributes:
        samples: number N of samples.
        bins: number of bins of binned errors.
        metrics: name → value.
        standard_errors: name → bootstrap standard error; metrics that not every evaluation measures have none.
        figure: the reliability diagram: of the largest probability, and, with two classes, of the second class's.
    """

    samples: int
    bins: int
    metrics: dict[str, float]
    standard_errors: dict[str, float]
    figure: Figure = field(repr=False)

    def save(self, path: str | Path) -> Path:
        """Write the diagram: a page that opens offline (`.html`), or `.pdf`, `.svg` or `.png`.

        Raises:
            SweeperError: the suffix is unknown, or the file cannot be written.
        """
        write_figure(self.figure, Path(path))
        return Path(path)

    def __rich__(self) -> RenderableType:
        """Return the table."""
        rows = [
            (metric.words if (metric := metric_of(name)) else name, spread_text(value, self.standard_errors.get(name)))
            for name, value in self.metrics.items()
        ]
        note = f"{self.samples:,} samples, {self.bins} bins; ± is one bootstrap standard error of the samples"
        return plain_table(["metric", "value"], rows, left=["metric"], note=note)

    def __repr__(self) -> str:
        return as_text(self.__rich__())

    def _repr_html_(self) -> str:
        return as_html(self.__rich__()) + svg_text(self.figure)


def calibration_report(
    y: ArrayLike,
    probabilities: ArrayLike,
    *,
    bins: int = 15,
    metrics: Sequence[str] = (),
    weights: ArrayLike | None = None,
) -> CalibrationReport:
    """Measure the calibration of probabilities on test samples.

    Args:
        y: labels [N] of any type; K of them, or integers in [0, K) of which some may not occur.
        probabilities: [N, K], one column a class in the order of the sorted labels; or [N] or [N, 1], that of the
            second of two classes.
        bins: number of bins of binned errors, at most N.
        metrics: further metrics by name (`sweeper spaces --metrics`).
        weights: weights [N] above 0 of the samples; accuracy, NLL, Brier score and ECE are then given with them, too.

    Returns:
        Values, standard errors and diagram; printed, it is a table.

    Raises:
        ValueError: probabilities that are not, labels that do not fit them, or an unknown metric.

    Example:
        >>> report = calibration_report(["no", "yes", "yes", "no"], [0.2, 0.9, 0.4, 0.3], bins=4)
        >>> report.metrics["accuracy"], round(report.metrics["nll"], 3)
        (0.75, 0.4...)
        >>> print(report)
        metric ...
    """
    values: Floats = np.asarray(probabilities, dtype=np.float64)
    if values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1):
        values = as_two_classes(values, probabilities=True)
    _, targets = columns_of(y, values.shape[-1])
    names = [*USUAL, *(OF_TWO_CLASSES if values.shape[-1] == 2 else ()), *metrics]
    unknown = [fault for name in names if (fault := METRICS.fault(name))]
    if unknown:
        raise UnusablePredictions("; ".join(unknown))
    always = [name for name in dict.fromkeys(names) if name in METRIC_NAMES]
    measured = evaluate_probabilities(values, targets, bins, always)
    measured |= {name: METRICS.build(name, values, targets) for name in dict.fromkeys(names) if name not in always}
    errors = bootstrap_standard_error(always, values, targets, bins, REPETITIONS)
    ordered = {name: measured[name] for name in dict.fromkeys(names)} | weighted_metrics(weights, values, targets, bins)
    return CalibrationReport(
        len(targets),
        bins,
        ordered,
        {name.removesuffix("_se"): value for name, value in errors.items()},
        _figure(values, targets, bins, ordered["ece"]),
    )


def _figure(values: Floats, targets: Integers, bins: int, ece: float) -> Figure:
    """Return the reliability diagrams of probabilities [N, K]."""
    confidence, correct = top_confidence(values, targets)
    panels = [_panel(f"Largest probability, ECE {ece:.3g}", confidence, correct, ("confidence", "accuracy"), bins)]
    if values.shape[1] == 2:
        happened = (targets == 1).astype(np.float64)
        panels.append(_panel("Probability of the second class", values[:, 1], happened, ("probability", "share"), bins))
    return Figure(
        title="Reliability",
        caption=(
            "Share of samples whose event happened against its probability; below the diagonal, probabilities are too "
            "large. Line: isotonic regression, without bins (CORP, Dimitriadis et al. 2021); band: where it lies in "
            "90 % of draws if every probability is right. Circles: equal-width bins; shaded: the share of samples in "
            "each, and their number."
        ),
        sql=[],
        tables=[],
        panels=panels,
    )


def _panel(heading: str, score: Floats, outcome: Floats, axes: tuple[str, str], bins: int) -> Panel:
    curve = isotonic(score, outcome, np.arange(len(score)))
    return diagram(heading, bins_of(score, outcome, bins), [], curve, axes)

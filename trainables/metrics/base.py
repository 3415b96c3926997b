"""What a metric is, how those that a search space asks for are measured, and the registry of all of them by name.

Adding one: a file of this folder with a function of (probabilities float64 [N, K], targets int64 [N], …) that returns a
number, and the `COMPONENTS` that describe it; no other file lists them. Objectives, tables and reports follow what the
`Metric` declares.

    def f1(probabilities: Floats, targets: Integers) -> float:
        predicted = probabilities.argmax(axis=1)
        both, either = ((predicted == 1) & (targets == 1)).sum(), (predicted == 1).sum() + (targets == 1).sum()
        return float(2 * both / either) if either else float("nan")

    COMPONENTS = (
        Metric("f1", f1, summary="harmonic mean of precision and recall of class 1", mode="max", range=(0, 1)),
    )

Its test compares it with its plain definition, as those of `tests/trainables/metrics/test_base.py` do. Users' own
need no file here: this module adapts what their import paths name, with the function's attributes `MODE` and `LABEL`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from trainables.extensions.adapters import OwnFamily, described, hyperparameters_of
from trainables.extensions.targets import describe_error
from trainables.metrics.probabilities import Floats, Integers
from trainables.registry import Component, ExtensionError, HyperparameterValue, Registry, column_label


@dataclass(frozen=True)
class Metric(Component):
    """A number that says how good predictions are.

    Attributes:
        label: how tables and figures call it; empty for its name.
        mode: whether it is to be maximised or minimised; `None` for one that is good at neither end.
        range: its least and largest value.
        unit: what it is counted in; empty for a share or a pure number.
        always: whether every evaluation measures it; else where a search space asks for it in `evaluation.metrics`.
        binned: whether it depends on bins and is biased at small samples: every evaluation reports its standard error.
        recalibrated: whether it is also measured after each post-hoc method: a change of confidence can move it.
        headline: whether trial pages and model cards show it.
        needs: what it is computed from besides probabilities and targets, and thus not by `build`; empty for no more.
    """

    label: str = ""
    mode: Literal["min", "max"] | None = "min"
    range: tuple[float, float] = (0.0, math.inf)
    unit: str = ""
    always: bool = False
    binned: bool = False
    recalibrated: bool = False
    headline: bool = False
    needs: str = ""

    @property
    def words(self) -> str:
        """How tables and figures call it."""
        return self.label or self.name.replace("_", " ")

    @property
    def range_text(self) -> str:
        """Its range, e.g. `[0, 1]` or `[0, inf)`."""
        low, high = self.range
        return f"{'(' if math.isinf(low) else '['}{low:g}, {high:g}{')' if math.isinf(high) else ']'}"


def _own_metric(target: object, path: str, name: str) -> Metric:
    if not callable(target) or isinstance(target, type):
        raise ExtensionError(f"{path} is {described(target)}; a metric is a function of (probabilities, targets)")
    mode: Literal["min", "max"] = getattr(target, "MODE", "min")
    if mode not in ("min", "max"):
        raise ExtensionError(f"{path}: MODE = {mode!r} must be min or max")

    def measure(probabilities: Floats, targets: Integers, **options: HyperparameterValue) -> float:
        try:
            return float(target(probabilities, targets, **options))
        except Exception as error:
            raise ValueError(describe_error(error, path)) from error

    taken = hyperparameters_of(target, path, ["probabilities", "targets"])
    return Metric(name, measure, taken, label=str(getattr(target, "LABEL", "")), mode=mode, range=(-math.inf, math.inf))


METRICS = Registry("metric", OwnFamily("metrics", _own_metric))
"""Every metric. `evaluation.metrics` may name those that are not measured in any case, see `further_metrics`."""

Metrics = tuple[tuple[str, Mapping[str, HyperparameterValue]], ...]
"""Names with their options."""

UNAVAILABLE = "metrics_unavailable"
"""The column that says why one of those that were asked for is empty."""


def further_metrics() -> Registry:
    """Return the metrics that an evaluation measures only where a search space asks for them, users' own among them."""
    return METRICS.only(lambda component: not _always(component))


def always_measured(kept: Callable[[Metric], bool] = lambda metric: not metric.needs) -> tuple[str, ...]:
    """Return the metrics that every evaluation measures, those that are `kept`: by default those of probabilities."""
    return tuple(each.name for each in METRICS.built_in() if isinstance(each, Metric) and each.always and kept(each))


def metric_of(column: str) -> Metric | None:
    """Return the metric that a column or objective holds, whatever split and post-hoc method its name begins with.

    `val_posthoc_temperature_ada_ece` holds `ada_ece`: of several names that it ends with, the longest counts. `None`
    for what is no metric, and for users' own, which are not imported to be read about.
    """
    words = column.split("_")
    names = ("_".join(words[start:]) for start in range(len(words)))
    name = next((name for name in names if not METRICS.is_own(name)), None)
    found = METRICS[name] if name is not None else None
    return found if isinstance(found, Metric) else None


def larger_is_better(column: str) -> bool:
    """Return whether the metric that a column or objective holds is to be maximised."""
    metric = metric_of(column)
    return metric is not None and metric.mode == "max"


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


def _always(component: Component) -> bool:
    return isinstance(component, Metric) and component.always

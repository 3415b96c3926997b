"""What a metric is, how those that a search space asks for are measured, and the registry of all of them by name.

Adding one: a file of this folder with a function of (probabilities float64 [N, K], targets int64 [N], …) that returns a
number, under the decorator that describes it; no other file lists them. Objectives, tables and reports follow what the
`Metric` declares.

    @METRICS.add("f1", "harmonic mean of precision and recall of class 1", mode="max", range=(0, 1))
    def f1(probabilities: Floats, targets: Integers) -> float:
        predicted = probabilities.argmax(axis=1)
        both, either = ((predicted == 1) & (targets == 1)).sum(), (predicted == 1).sum() + (targets == 1).sum()
        return float(2 * both / either) if either else float("nan")

Its test compares it with its plain definition, as those of `tests/trainables/metrics/test_base.py` do. Users' own
need no file here: this module adapts what their import paths name, with the function's attributes `MODE` and `LABEL`.

All metrics and post-hoc methods take class probabilities or logits in float64, checked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trainables.extensions.targets import OwnFamily, describe_error, described
from trainables.registry import (
    Component,
    ExtensionError,
    HyperparameterValue,
    Registry,
    column_label,
    hyperparameters_of,
)

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

#: A probability of 0 counts as this in logarithms: a sample's nll is at most 708.4, not infinite.
#:
#: From finite logits the nll needs no such limit, and has none.
SMALLEST_PROBABILITY = float(np.finfo(np.float64).tiny)


class UnusablePredictions(ValueError):  # noqa: N818 - says what is the matter, as the project's errors do
    """Predictions or targets that no metric or post-hoc method can use; the message says value, rule and remedy."""


def log_softmax64(logits: ArrayLike) -> Floats:
    """Return log softmax, z − log Σ_k exp z_k, of `logits` z [..., K] in float64.

    Accepts anything numpy can read, CPU tensors included.
    """
    values = np.asarray(logits, dtype=np.float64)
    shifted: Floats = values - values.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def softmax64(logits: ArrayLike) -> Floats:
    """Return softmax of `logits` [..., K] in float64.

    Float32 probabilities tie thousands of confidences near 1 on ordinary test sets, which moves rank-based
    metrics; float64 keeps them apart.
    """
    values = np.asarray(logits, dtype=np.float64)
    weights: Floats = np.exp(values - values.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def finite_logits(logits: ArrayLike) -> NDArray[Any]:
    """Return `logits` [..., K], −inf as log `SMALLEST_PROBABILITY` below the largest of its row.

    −inf is the logarithm of a probability of exactly 0, as forests and masks give it. A row of nothing else stays.
    """
    values = np.asarray(logits)
    if not values.size or values.min() != -math.inf:
        return values
    floor = values.max(axis=-1, keepdims=True) + values.dtype.type(math.log(SMALLEST_PROBABILITY))
    return np.asarray(np.where(np.isneginf(values), floor, values))


def are_probabilities(rows: ArrayLike) -> bool:
    """Return whether all `rows` [N, K] are probabilities: none is negative, and each sums to 1 within .001."""
    values = np.asarray(rows, dtype=np.float64)
    return bool(values.size and values.min() >= 0.0 and (np.abs(values.sum(axis=-1) - 1.0) <= 1e-3).all())


def require_logits(
    logits: ArrayLike, targets: ArrayLike, error: type[UnusablePredictions] = UnusablePredictions
) -> None:
    """Raise `error`, naming every fault at once, unless logits [N, K] can be used and targets [N] lie in [0, K).

    A logit may be −inf, but not all of a sample.
    """
    scores, labels = np.asarray(logits), np.asarray(targets)
    faults = _shape_faults(scores, labels, "logits")
    if not faults:
        faults += _finite_faults(finite_logits(scores), "logits") + _label_faults(labels, scores.shape[1])
    if faults:
        raise error("; ".join(faults))


def require_probabilities(probabilities: Floats, targets: ArrayLike, bins: int) -> None:
    """Raise `UnusablePredictions`, naming every fault at once, unless metrics over `bins` bins can be computed.

    The rules: probabilities [N, K] are finite, in [0, 1], and each row sums to 1; targets [N] are whole numbers
    in [0, K); bins is at least 1 and at most N.
    """
    labels = np.asarray(targets)
    faults = _shape_faults(probabilities, labels, "probabilities")
    if not faults:
        faults += _finite_faults(probabilities, "probabilities") or _simplex_faults(probabilities)
        faults += _label_faults(labels, probabilities.shape[1]) + bin_faults(len(labels), bins)
    if faults:
        raise UnusablePredictions("; ".join(faults))


def bin_faults(samples: int, bins: int) -> list[str]:
    """Return the rules that `bins` bins over `samples` samples break, one sentence each."""
    if bins < 1:
        return [f"bins = {bins} must be at least 1"]
    if samples < bins:
        return [f"{samples} samples are fewer than {bins} bins: use at most {samples} bins or more samples"]
    return []


def _shape_faults(scores: NDArray[np.generic], labels: NDArray[np.generic], what: str) -> list[str]:
    if scores.ndim != 2 or scores.shape[0] == 0:
        return [f"{what} of shape {scores.shape} must be [samples, classes] with at least one sample"]
    if scores.shape[1] < 2:
        return [f"{what} with {scores.shape[1]} class: calibration needs at least two classes"]
    if labels.shape != scores.shape[:1]:
        return [f"targets of shape {labels.shape} must be one class index for each of {scores.shape[0]} samples"]
    return []


def _finite_faults(values: NDArray[np.generic], what: str) -> list[str]:
    finite = np.isfinite(values)
    if finite.all():
        return []
    row, column = (int(i) for i in np.argwhere(~finite)[0])
    rows = int((~finite.all(axis=1)).sum())
    return [
        f"{what} hold {values[row, column]} (sample {row}, class {column}; {rows} of {len(values)} samples): "
        f"they must be finite; the network diverged, so lower the learning rate or drop those samples"
    ]


def _simplex_faults(probabilities: Floats) -> list[str]:
    if probabilities.min() < 0.0 or probabilities.max() > 1.0 + 1e-6:
        low, high = probabilities.min(), probabilities.max()
        return [f"probabilities from {low:g} to {high:g} must lie in [0, 1]: pass softmax outputs, not logits"]
    sums = probabilities.sum(axis=1)
    worst = int(np.abs(sums - 1.0).argmax())
    if abs(sums[worst] - 1.0) > 1e-3:
        return [f"probabilities of sample {worst} sum to {sums[worst]:g}: each row must sum to 1"]
    return []


def _label_faults(labels: Integers, classes: int) -> list[str]:
    if not np.issubdtype(labels.dtype, np.integer):
        return [f"targets of type {labels.dtype} must be whole numbers: pass class indices"]
    outside = (labels < 0) | (labels >= classes)
    if not outside.any():
        return []
    first = int(outside.argmax())
    return [
        f"target {labels[first]} (sample {first}; {int(outside.sum())} in all) is outside [0, {classes}): "
        f"number the classes from 0 or drop those samples"
    ]


def top_confidence(probabilities: Floats, targets: Integers) -> tuple[Floats, Floats]:
    """Return each sample's largest probability [N], and 1 where its class, the first of tied ones, is right, else 0."""
    return probabilities.max(axis=1), (probabilities.argmax(axis=1) == targets).astype(np.float64)


def of_each_class(error: Callable[[Floats, Floats], float], probabilities: Floats, targets: Integers) -> list[float]:
    """Return for each class k the `error` of p_k [N] against 1[y = k] [N]."""
    return [error(probabilities[:, k], (targets == k).astype(np.float64)) for k in range(probabilities.shape[1])]


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


#: Every metric. `evaluation.metrics` may name those that are not measured in any case, see `further_metrics`.
METRICS = Registry("metric", OwnFamily("metrics", _own_metric), Metric, ["probabilities", "targets"])

#: Names with their options.
Metrics = tuple[tuple[str, Mapping[str, HyperparameterValue]], ...]

#: The column that says why one of those that were asked for is empty.
UNAVAILABLE = "metrics_unavailable"


def further_metrics() -> Registry[Metric]:
    """Return the metrics that an evaluation measures only where a search space asks for them, users' own among them."""
    return METRICS.only(lambda each: not each.always)


def always_measured(kept: Callable[[Metric], bool] = lambda metric: not metric.needs) -> tuple[str, ...]:
    """Return the metrics that every evaluation measures, those that are `kept`: by default those of probabilities."""
    return tuple(each.name for each in METRICS.built_in() if each.always and kept(each))


def metric_of(column: str) -> Metric | None:
    """Return the metric that a column or objective holds, whatever split and post-hoc method its name begins with.

    `val_posthoc_temperature_ada_ece` holds `ada_ece`: of several names that it ends with, the longest counts. `None`
    for what is no metric, and for users' own, which are not imported to be read about.
    """
    words = column.split("_")
    names = ("_".join(words[start:]) for start in range(len(words)))
    name = next((name for name in names if not METRICS.is_own(name)), None)
    return METRICS[name] if name is not None else None


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
    labels = [f"{prefix}{column_label(name)}" for name in names]
    return (*labels, f"{prefix}{UNAVAILABLE}") if labels else ()

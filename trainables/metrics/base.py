"""The base of all metrics: the registry of metrics by name, checks of predictions, and metrics named in a search space.

To add a metric, write a file in this folder with a function of (probabilities float64 [N, K], targets int64 [N], …)
that returns a number, under the decorator that describes it. No other file lists metrics. Objectives, tables and
reports follow the declaration in `Metric`.

    @METRICS.add("f1", "harmonic mean of precision and recall of class 1", mode="max", range=(0, 1))
    def f1(probabilities: Floats, targets: Integers) -> float:
        predicted = probabilities.argmax(axis=1)
        both, either = ((predicted == 1) & (targets == 1)).sum(), (predicted == 1).sum() + (targets == 1).sum()
        return float(2 * both / either) if either else float("nan")

Its test compares it with its plain definition, as in `tests/trainables/metrics/test_base.py`. Users' own metrics need
no file here: this module adapts the functions that their import paths name, with their attributes `MODE` and `LABEL`.

All metrics and post-hoc methods take class probabilities or logits in float64, checked here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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

#: Stands for a probability of 0 in logarithms: the NLL of a sample is at most 708.4 instead of infinite.
#:
#: The NLL from finite logits is finite and not limited.
SMALLEST_PROBABILITY = float(np.finfo(np.float64).tiny)


class UnusablePredictions(ValueError):  # noqa: N818 - says what is the matter, as the project's errors do
    """Predictions or targets that no metric or post-hoc method can use; the message has value, rule and remedy."""


def log_softmax64(logits: ArrayLike) -> Floats:
    """Return log softmax, z − log Σ_k exp z_k, of `logits` z [..., K] in float64.

    Accepts anything numpy can read, CPU tensors included.

    Example:
        >>> log_softmax64([0.0, 1000.0]).tolist()
        [-1000.0, 0.0]
    """
    values = np.asarray(logits, dtype=np.float64)
    shifted: Floats = values - values.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def softmax64(logits: ArrayLike) -> Floats:
    """Return softmax of `logits` [..., K] in float64.

    Float32 probabilities tie thousands of confidences near 1 on ordinary test sets, which changes rank-based metrics;
    float64 distinguishes them.

    Example:
        >>> softmax64([[0.0, 0.0], [3.0, 0.0]]).round(4).tolist()
        [[0.5, 0.5], [0.9526, 0.0474]]
    """
    values = np.asarray(logits, dtype=np.float64)
    weights: Floats = np.exp(values - values.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def finite_logits(logits: ArrayLike) -> NDArray[Any]:
    """Return `logits` [..., K] with −inf replaced by log `SMALLEST_PROBABILITY` plus the largest logit of its row.

    −inf is the logarithm of a probability of exactly 0, as forests and masks produce it. Rows that contain only −inf
    are returned unchanged.
    """
    values = np.asarray(logits)
    # `min` finds −inf without an array of booleans; almost all logits are finite
    if not values.size or values.min() != -math.inf:
        return values
    floor = values.max(axis=-1, keepdims=True) + values.dtype.type(math.log(SMALLEST_PROBABILITY))
    return np.asarray(np.where(np.isneginf(values), floor, values))


def are_probabilities(rows: ArrayLike) -> bool:
    """Return whether all `rows` [N, K] are probabilities: none negative, and each row sums to 1 within .001."""
    values = np.asarray(rows, dtype=np.float64)
    return bool(values.size and values.min() >= 0.0 and (np.abs(values.sum(axis=-1) - 1.0) <= 1e-3).all())


def require_logits(
    logits: ArrayLike, targets: ArrayLike, error: type[UnusablePredictions] = UnusablePredictions
) -> None:
    """Check that logits [N, K] can be used and that targets [N] lie in [0, K).

    A logit can be −inf, but not all logits of a sample.

    Raises:
        error: the check failed; the message names all faults.
    """
    scores, labels = np.asarray(logits), np.asarray(targets)
    faults = _shape_faults(scores, labels, "logits")
    if not faults:
        faults += _finite_faults(finite_logits(scores), "logits") + _label_faults(labels, scores.shape[1])
    if faults:
        raise error("; ".join(faults))


def require_probabilities(probabilities: Floats, targets: ArrayLike, bins: int) -> None:
    """Check that metrics over `bins` bins can be computed.

    The rules: probabilities [N, K] are finite, in [0, 1], and each row sums to 1; targets [N] are whole numbers
    in [0, K); bins is at least 1 and at most N.

    Raises:
        UnusablePredictions: the check failed; the message names all faults.
    """
    labels = np.asarray(targets)
    faults = _shape_faults(probabilities, labels, "probabilities")
    if not faults:
        faults += _finite_faults(probabilities, "probabilities") or _simplex_faults(probabilities)
        faults += _label_faults(labels, probabilities.shape[1]) + bin_faults(len(labels), bins)
    if faults:
        raise UnusablePredictions("; ".join(faults))


def bin_faults(samples: int, bins: int) -> list[str]:
    """Return the rules that `bins` bins over `samples` samples break, one sentence per rule."""
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
    # by rounding, a float32 softmax can exceed 1; with more classes, the sums of its rows differ more from 1
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


def columns_of(labels: ArrayLike, columns: int) -> tuple[NDArray[Any], Integers]:
    """Return the labels of K columns of outputs, and each sample's column [N].

    Columns are in the order of the sorted labels. Integer labels in [0, K) name their column, so some may not occur.

    Raises:
        UnusablePredictions: there are not as many classes as columns.

    Example:
        >>> columns_of(["dog", "cat", "dog"], 2)[1].tolist(), columns_of([2, 0, 2], 3)[1].tolist()
        ([1, 0, 1], [2, 0, 2])
    """
    given = np.asarray(labels)
    occurring, targets = np.unique(given, return_inverse=True)
    if len(occurring) == columns:
        return occurring, targets.astype(np.int64)
    whole = given.dtype.kind in "iuf" and (occurring == np.floor(occurring)).all()
    if whole and len(occurring) and occurring[0] >= 0 and occurring[-1] < columns:
        return np.arange(columns, dtype=given.dtype), given.astype(np.int64)
    shown = ", ".join(map(str, occurring[:5])) + (", …" if len(occurring) > 5 else "")
    raise UnusablePredictions(
        f"{columns} columns, but {len(occurring)} classes occur ({shown}): give one column a class, in the order of "
        f"the sorted labels; or label the columns by integers 0 … {columns - 1}, if some have no sample"
    )


def top_confidence(probabilities: Floats, targets: Integers) -> tuple[Floats, Floats]:
    """Return the largest probability of each sample, and 1 if its class (the first of tied ones) is right, else 0.

    `probabilities` are [..., N, K], `targets` [N], the results [..., N].

    Example:
        >>> confidence, correct = top_confidence(np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([0, 0]))
        >>> confidence.tolist(), correct.tolist()
        ([0.7, 0.6], [1.0, 0.0])
    """
    return probabilities.max(axis=-1), (probabilities.argmax(axis=-1) == targets).astype(np.float64)


def of_each_class(error: Callable[[Floats, Floats], float], probabilities: Floats, targets: Integers) -> list[float]:
    """Return the `error` of p_k [N] against 1[y = k] [N] for each class k."""
    return [error(probabilities[:, k], (targets == k).astype(np.float64)) for k in range(probabilities.shape[1])]


@dataclass(frozen=True)
class Metric(Component):
    """The registry's entry of a metric: a number that measures the quality of predictions.

    Attributes:
        label: name in tables and figures; empty for `name`.
        mode: direction of improvement; `None` for a metric without one.
        range: smallest and largest value.
        unit: unit, e.g. nats; empty for a share or a pure number.
        always: whether every evaluation measures it; if not, a search space requests it in `evaluation.metrics`.
        binned: whether it depends on bins and is biased at small samples: every evaluation reports its standard error.
        recalibrated: whether it is also measured after each post-hoc method, because a changed confidence changes it.
        headline: whether trial pages and model cards show it.
        needs: input that `build` needs besides probabilities and targets; empty for none.

    Example:
        >>> from trainables.metrics import METRICS
        >>> ece = METRICS["ece"]
        >>> ece.words, ece.mode, ece.range_text, ece.binned
        ('ECE', 'min', '[0, 1]', True)
    """

    label: str = ""
    mode: Literal["min", "max"] | None = field(kw_only=True)  # no default: forgotten, it would reverse a ranking
    range: tuple[float, float] = (0.0, math.inf)
    unit: str = ""
    always: bool = False
    binned: bool = False
    recalibrated: bool = False
    headline: bool = False
    needs: str = ""

    @property
    def words(self) -> str:
        """Name in tables and figures."""
        return self.label or self.name.replace("_", " ")

    @property
    def range_text(self) -> str:
        """Range as text, e.g. `[0, 1]` or `[0, inf)`."""
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
        except Exception as error:  # a user's function can raise anything; a sweep must survive it
            raise ValueError(describe_error(error, path)) from error

    taken = hyperparameters_of(target, path, ["probabilities", "targets"])
    return Metric(name, measure, taken, label=str(getattr(target, "LABEL", "")), mode=mode, range=(-math.inf, math.inf))


#: All metrics. `evaluation.metrics` can name those that are not always measured, see `further_metrics`.
METRICS = Registry("metric", OwnFamily("metrics", _own_metric), Metric, ["probabilities", "targets"])

#: Names of metrics with their options.
Metrics = tuple[tuple[str, Mapping[str, HyperparameterValue]], ...]

#: Column with the reasons why requested metrics are empty.
UNAVAILABLE = "metrics_unavailable"


def further_metrics() -> Registry[Metric]:
    """Return the metrics that an evaluation measures only if a search space requests them, including users' own."""
    return METRICS.only(lambda metric: not metric.always)


def always_measured(kept: Callable[[Metric], bool] = lambda metric: not metric.needs) -> tuple[str, ...]:
    """Return the metrics of every evaluation that satisfy `kept`; by default, the metrics of probabilities."""
    return tuple(metric.name for metric in METRICS.built_in() if metric.always and kept(metric))


def metric_of(column: str) -> Metric | None:
    """Return the metric in a column or objective, whose name can begin with a split and a post-hoc method.

    `None` if it holds no metric, or a user-defined metric, because user code is not imported for this.

    Example:
        >>> from trainables.metrics import METRICS
        >>> metric_of("val_posthoc_temperature_ada_ece").name
        'ada_ece'
    """
    words = column.split("_")
    # the longest name that the column ends with: `ada_ece`, not `ece`
    names = ("_".join(words[start:]) for start in range(len(words)))
    name = next((name for name in names if not METRICS.is_own(name)), None)
    return METRICS[name] if name is not None else None


def larger_is_better(column: str) -> bool:
    """Return whether larger values of a column or objective are better."""
    metric = metric_of(column)
    return metric is not None and metric.mode == "max"


def further_metric_columns(
    metrics: Metrics, probabilities: Floats, targets: Integers, prefix: str = ""
) -> dict[str, float | str]:
    """Return the columns of `metrics`: their values, or the reasons why they could not be computed.

    Args:
        metrics: names and options.
        probabilities: float64 [N, K].
        targets: int64 [N].
        prefix: prefix of the column names, for probabilities after a post-hoc method.
    """
    row: dict[str, float | str] = {}
    reasons = []
    for name, options in metrics:
        column = prefix + column_label(name)
        try:
            row[column] = METRICS.build(name, probabilities, targets, **options)
        except ValueError as error:  # a metric that fails must not stop the others or the trial
            reasons.append(f"{column}: {error}")
    if reasons:
        row[f"{prefix}{UNAVAILABLE}"] = "; ".join(reasons)
    return row


def further_metric_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the columns that these metrics fill; none without metrics."""
    labels = [column_label(name) for name in names]
    return (*labels, UNAVAILABLE) if labels else ()

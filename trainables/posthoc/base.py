"""The post-hoc method family: fitting, checks, and the registry of methods by name.

To add a method, write a file in this folder with a function that takes validation logits [N, K], targets [N] and
options, returns a `Calibrator`, and carries the `POSTHOC.add` decorator. No other file lists the methods.

    class Sharpened(Calibrator):
        def _probabilities(self, logits: Floats) -> Floats:
            return softmax64(logits * self.parameters["power"])

    @POSTHOC.add("sharpened", "p^2", columns=("power",))
    def fit_sharpened(logits: ArrayLike, targets: ArrayLike, *, power: Annotated[float, "[0, inf)"] = 2.0) -> Sharpened:
        values, _ = validation_data(logits, targets)
        return Sharpened("sharpened", {"power": power}, values.shape[1])

`tests/trainables/posthoc/test_base.py` tests every registered method. A user's own method needs no file here.

No method can fail an evaluation: `fit` and `Calibrator` turn whatever it raises, and parameters or probabilities that
are not finite, into PosthocUnavailable, whose text becomes a column.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from trainables.extensions.targets import OwnFamily, describe_error, described
from trainables.metrics.base import (
    SMALLEST_PROBABILITY,
    Floats,
    Integers,
    UnusablePredictions,
    are_probabilities,
    bin_faults,
    finite_logits,
    require_logits,
    require_probabilities,
    softmax64,
)
from trainables.metrics.refinement import FOLDS, folds_of
from trainables.registry import Component, ExtensionError, HyperparameterValue, Options, Registry, hyperparameters_of

if TYPE_CHECKING:
    from torch import nn


class PosthocUnavailable(UnusablePredictions):
    """Raised when a post-hoc method cannot be fitted or applied; the trial continues without it."""


@contextmanager
def failures_as_unavailable(path: str) -> Iterator[None]:
    """Turn any exception of a method into PosthocUnavailable; `path` is its import path, to name the line that failed.

    Overflows are silent: what comes of them is not finite and is reported.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except PosthocUnavailable:
        raise
    except Exception as error:
        raise PosthocUnavailable(describe_error(error, path)) from error


class Calibrator(ABC):
    """A fitted post-hoc method, which maps logits [N, K] to float64 probabilities [N, K].

    Attributes:
        name: method name in POSTHOC.
        parameters: fitted values as plain floats; true and false are 1.0 and 0.0.
        classes: K, the number of classes it was fitted on.
        path: import path of a user's code, of which messages name the line.

    Example:
        >>> class Halved(Calibrator):
        ...     def _probabilities(self, logits):
        ...         return softmax64(logits / 2)
        >>> Halved("halved", {"temperature": 2.0}, classes=2)([[2.0, 0.0]]).round(3)
        array([[0.731, 0.269]])
    """

    path = "builtins"

    def __init__(self, name: str, parameters: Mapping[str, float], classes: int) -> None:
        """Store the fitted `parameters` as floats."""
        self.name = name
        self.parameters = {key: float(value) for key, value in parameters.items()}
        self.classes = classes

    def __call__(self, logits: ArrayLike) -> Floats:
        """Return calibrated probabilities [N, K] for `logits` [N, K].

        Raises PosthocUnavailable for non-finite logits, for a number of classes other than the fitted one, and if the
        method fails or its result is not probabilities.
        """
        values = finite_logits(np.asarray(logits, dtype=np.float64))
        # Test targets are unknown here; zeros satisfy the target checks, so that only the logits are judged.
        require_logits(values, np.zeros(values.shape[:1], dtype=np.int64), PosthocUnavailable)
        if values.shape[1] != self.classes:
            raise PosthocUnavailable(
                f"{self.name} was fitted on {self.classes} classes but received logits for {values.shape[1]} classes: "
                "fit and apply it on the same task"
            )
        with failures_as_unavailable(self.path):
            probabilities: Floats = np.asarray(self._probabilities(values), dtype=np.float64)
        _require_result(probabilities, values.shape)
        return probabilities

    @abstractmethod
    def _probabilities(self, logits: Floats) -> Floats:
        """Return calibrated probabilities [N, K] for checked float64 logits [N, K]."""

    def underflowed(self, logits: ArrayLike, probabilities: Floats) -> Floats | None:
        """Return logits whose softmax is `probabilities` if a probability underflowed, so that the NLL stays exact."""
        return None

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value:.6g}" for key, value in self.parameters.items())
        return f"{type(self).__name__}({self.name}: {inside})"


def _require_result(probabilities: Floats, shape: tuple[int, ...]) -> None:
    """Raise PosthocUnavailable if a method's result is not probabilities of this shape."""
    if probabilities.shape != shape:
        raise PosthocUnavailable(f"its result has shape {probabilities.shape}: return the shape of the logits, {shape}")
    lost = np.flatnonzero(~np.isfinite(probabilities).all(axis=1))
    if len(lost):
        raise PosthocUnavailable(
            f"its probabilities of {len(lost)} of {len(probabilities)} samples, the first {lost[0]}, are not finite: "
            "use another method, or logits of a smaller range"
        )
    try:
        require_probabilities(probabilities, np.zeros(len(probabilities), dtype=np.int64), bins=1)
    except UnusablePredictions as error:
        raise PosthocUnavailable(f"its {error}") from error


@dataclass(frozen=True)
class PosthocMethod(Component):
    """A registered post-hoc method.

    Attributes:
        columns: keys of its calibrators' `parameters`, which become table columns.
        label: name in reports; empty to derive it from `name`.
        layer: function from a fitted calibrator to the torch module for an exported model; `None` if torch cannot
            compute the method.
        takes_gamma: whether the method, with these options, defaults to the training loss's γ.
        free: function from the number of classes and the fitted `parameters` to the number of free parameters k of a
            fit by the NLL. With n samples, its expected error is k/(2n) of NLL (Wilks 1938, Akaike 1974). `None` if
            they cannot be counted, as under strong penalties. Class-by-class maps state an effective number.
    """

    columns: tuple[str, ...] = ()
    label: str = ""
    layer: Callable[[Any], nn.Module] | None = None
    takes_gamma: Callable[[Options], bool] = lambda options: False
    free: Callable[[int, Mapping[str, float]], float] | None = None

    @property
    def words(self) -> str:
        """Name in reports."""
        return self.label or self.name.replace("_", " ")


def validation_data(logits: ArrayLike, targets: ArrayLike, bins: int | None = None) -> tuple[Floats, Integers]:
    """Check validation data and return float64 logits [N, K] and int64 targets [N].

    Raises PosthocUnavailable for logits that are NaN, +inf or probabilities, labels outside [0, K), targets of one
    class only and, for a method that bins, fewer samples than `bins`.

    Example:
        >>> validation_data([[2, 0], [0, 3]], [0, 0])
        Traceback (most recent call last):
        ...
        trainables.posthoc.base.PosthocUnavailable: all 2 validation samples are of class 0: calibration needs ...
    """
    require_logits(logits, targets, PosthocUnavailable)
    labels = np.asarray(targets, dtype=np.int64)
    faults = bin_faults(len(labels), bins) if bins is not None else []
    # Probabilities pass every other check and give a wrong but plausible fit, so they get an error of their own.
    if are_probabilities(logits):
        faults.append("the logits are probabilities (each row sums to 1): pass their logarithms")
    if (labels == labels[0]).all():
        faults.append(
            f"all {len(labels)} validation samples are of class {labels[0]}: calibration needs at least two "
            "classes; validate on a stratified split"
        )
    if faults:
        raise PosthocUnavailable("; ".join(faults))
    return finite_logits(np.asarray(logits, dtype=np.float64)), labels


class SoftmaxCalibrator(Calibrator):
    """A calibrator whose output is a softmax of mapped logits; its NLL stays exact where probabilities underflow."""

    def _probabilities(self, logits: Floats) -> Floats:
        return softmax64(self._mapped(logits))

    def underflowed(self, logits: ArrayLike, probabilities: Floats) -> Floats | None:
        """Return the mapped logits if one of `probabilities` underflowed, else `None`."""
        # The mapped logits are computed again only here: underflow is rare, and keeping them doubles the memory.
        lost = probabilities.min() < SMALLEST_PROBABILITY
        with np.errstate(all="ignore"):  # as in the first computation, whose result was finite
            return self._mapped(finite_logits(np.asarray(logits, dtype=np.float64))) if lost else None

    @abstractmethod
    def _mapped(self, logits: Floats) -> Floats:
        """Return calibrated logits [N, K] for checked float64 logits [N, K]."""


class CheckedCalibrator(Calibrator):
    """Wraps the calibrator that a user's own method returned."""

    def __init__(self, inner: object, name: str, path: str, columns: Sequence[str], classes: int) -> None:
        """Wrap `inner`, a callable from logits to probabilities.

        Raises ExtensionError if `inner` is not callable, or has `parameters` that `PARAMETERS` does not name.
        """
        if not callable(inner):
            raise ExtensionError(
                f"{path} returned a {type(inner).__name__}: return a callable from logits to probabilities"
            )
        parameters = dict(getattr(inner, "parameters", {}))
        # A table's columns are fixed before the first fit, so parameters must be declared.
        unnamed = sorted(set(parameters) - set(columns))
        if unnamed:
            raise ExtensionError(
                f"{path} returned parameters that it does not declare: {', '.join(unnamed)}; they become columns, so "
                f"declare PARAMETERS = {tuple(sorted(parameters))!r}"
            )
        super().__init__(name, parameters, classes)
        self._inner, self.path = inner, path

    def _probabilities(self, logits: Floats) -> Floats:
        return self._inner(logits)  # type: ignore[no-any-return]  # checked by the caller


def _posthoc(target: object, path: str, name: str) -> PosthocMethod:
    if not callable(target):
        raise ExtensionError(f"{path} is {described(target)}: a post-hoc method is called with (logits, targets)")
    columns = tuple(getattr(target, "PARAMETERS", ()))

    def fit(logits: ArrayLike, targets: ArrayLike, **options: HyperparameterValue) -> CheckedCalibrator:
        values, labels = validation_data(logits, targets)
        return CheckedCalibrator(target(values, labels, **options), name, path, columns, np.shape(values)[1])

    return PosthocMethod(name, fit, hyperparameters_of(target, path, ["logits", "targets"]), columns=columns)


POSTHOC = Registry("post-hoc method", OwnFamily("posthoc", _posthoc), PosthocMethod, ["logits", "targets"])


def fit(name: str, logits: ArrayLike, targets: ArrayLike, **options: HyperparameterValue) -> Calibrator:
    """Fit post-hoc method `name` on validation logits [N, K] and targets [N] and return its calibrator.

    Raises:
        ValueError: unknown name or invalid options; the message lists every fault.
        PosthocUnavailable: (a ValueError) the method cannot be fitted on these data: non-finite logits, labels outside
            [0, K), one class only, fewer samples than bins, a constraint that MetaCal cannot meet, parameters that are
            not finite, or any other failure.

    Example:
        >>> logits = [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]]
        >>> calibrator = fit("temperature", logits, targets=[0, 0, 1, 1, 1])
        >>> calibrator
        FocalTemperatureCalibrator(temperature: temperature=0.90603, converged=1, at_bound=0)
        >>> calibrator([[2.0, 0.0]]).round(3)
        array([[0.901, 0.099]])
    """
    method = POSTHOC.checked(name, options)
    with failures_as_unavailable(POSTHOC.installed().get(name, name) if POSTHOC.is_own(name) else Calibrator.path):
        calibrator: Calibrator = method.build(logits, targets, **options)
    undeclared = [] if POSTHOC.is_own(name) else [key for key in calibrator.parameters if key not in method.columns]
    if undeclared:  # tables have no columns for them
        raise TypeError(f"{name} fits {', '.join(undeclared)}, which its columns do not declare")
    lost = [f"{key} = {value}" for key, value in calibrator.parameters.items() if not math.isfinite(value)]
    if lost:
        raise PosthocUnavailable(
            f"these data determine no finite {', '.join(lost)}: use another method or more samples"
        )
    return calibrator


def parameter_names(name: str) -> tuple[str, ...]:
    """Return the keys of `Calibrator.parameters` for method `name`, in order. Raises ValueError if it is unknown.

    Example:
        >>> parameter_names("temperature")
        ('temperature', 'converged', 'at_bound')
    """
    unknown = POSTHOC.fault(name)
    if unknown:
        raise ValueError(unknown)
    return POSTHOC[name].columns


def cross_fitted(
    method: str, logits: ArrayLike, targets: ArrayLike, options: Mapping[str, HyperparameterValue]
) -> tuple[Floats, Floats | None]:
    """Calibrate each fold with `method` fitted on the other folds.

    The five folds are those of the refinement metrics (`trainables.metrics.refinement.folds_of`), which deal out each
    class in turn. Returns probabilities [N, K]. If a probability underflowed, it also returns logits [N, K] for an
    exact NLL (`Calibrator.underflowed`); otherwise `None`.

    Args:
        method: method name in POSTHOC.
        logits: validation logits [N, K].
        targets: class indices [N].
        options: options for the method.

    Raises:
        PosthocUnavailable: there are fewer samples than folds, or the method cannot be fitted on the other folds.

    Example:
        >>> logits = np.tile([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]], (5, 1))
        >>> probabilities, exact = cross_fitted("temperature", logits, [0, 1, 1] * 5, {})
        >>> probabilities.shape, exact
        ((15, 2), None)
    """
    values, labels = np.asarray(logits), np.asarray(targets)
    if len(labels) < FOLDS:
        raise PosthocUnavailable(f"{len(labels)} samples are too few to cross-fit {method}: it needs at least {FOLDS}")
    fold = folds_of(labels)
    probabilities: Floats = np.empty(values.shape, dtype=np.float64)
    exact: Floats | None = None
    for held_out in (fold == index for index in range(FOLDS)):
        calibrator = fit(method, values[~held_out], labels[~held_out], **options)
        probabilities[held_out] = calibrator(values[held_out])
        underflowed = calibrator.underflowed(values[held_out], probabilities[held_out])
        if underflowed is not None:
            # Rows of folds without underflow stay 0: the NLL reads `exact` only where a probability underflowed.
            exact = np.zeros(values.shape) if exact is None else exact
            exact[held_out] = underflowed
    return probabilities, exact

"""What a post-hoc method is: how it is fitted and checked, and the registry of all of them by name.

Adding one: a file of this folder with a function of validation logits [N, K], targets [N] and options that returns a
`Calibrator`, under the decorator that describes it; no other file lists them.

    class Sharpened(Calibrator):
        def _probabilities(self, logits: Floats) -> Floats:
            return softmax64(logits * self.parameters["power"])

    @POSTHOC.add("sharpened", "p^2", columns=("power",))
    def fit_sharpened(logits: ArrayLike, targets: ArrayLike, *, power: Annotated[float, "[0, inf)"] = 2.0) -> Sharpened:
        values, _ = validation_data(logits, targets)
        return Sharpened("sharpened", {"power": power}, values.shape[1])

`tests/trainables/posthoc/test_base.py` tests what holds for every method. Users' own need no file here: this module
adapts what their import paths name, and checks their probabilities before anything is measured.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

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

LogitsAndTargets = tuple[Floats, Integers]


class PosthocUnavailable(UnusablePredictions):
    """A post-hoc method cannot be fitted or applied; the message says value, rule and remedy. The trial continues."""


class Calibrator(ABC):
    """A fitted post-hoc method: a map from logits [N, K] to probabilities [N, K] in float64.

    Attributes:
        name: the method's name in POSTHOC.
        parameters: what was fitted, as plain floats; a yes/no is 1.0/0.0.
        classes: K of the logits it was fitted on.
    """

    def __init__(self, name: str, parameters: Mapping[str, float], classes: int) -> None:
        """Keep the fitted `parameters`."""
        self.name = name
        self.parameters = {key: float(value) for key, value in parameters.items()}
        self.classes = classes

    def __call__(self, logits: ArrayLike) -> Floats:
        """Return calibrated probabilities [N, K] of `logits` [N, K].

        Raises PosthocUnavailable for non-finite logits or another number of classes than fitted on.
        """
        values = finite_logits(np.asarray(logits, dtype=np.float64))
        require_logits(values, np.zeros(values.shape[:1], dtype=np.int64), PosthocUnavailable)
        if values.shape[1] != self.classes:
            raise PosthocUnavailable(
                f"{self.name} was fitted on {self.classes} classes and got logits of {values.shape[1]}: "
                "fit and apply it on the same task"
            )
        return self._probabilities(values)

    @abstractmethod
    def _probabilities(self, logits: Floats) -> Floats:
        """Return calibrated probabilities of checked float64 logits."""

    def underflowed(self, logits: ArrayLike, probabilities: Floats) -> Floats | None:
        """Return the logits whose softmax `probabilities` of `logits` are, if one underflowed; without any, `None`."""
        return None

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value:.6g}" for key, value in self.parameters.items())
        return f"{type(self).__name__}({self.name}: {inside})"


@dataclass(frozen=True)
class PosthocMethod(Component):
    """A method that is fitted on validation predictions.

    Attributes:
        columns: the keys of its calibrators' `parameters`, which become columns.
        build_many: fits it on a list of several networks' predictions at once, with options in common; `None` where
            that is no faster.
        label: how reports call it; empty for its name.
        layer: makes of a fitted calibrator the torch module that computes it in an exported model; `None` where torch
            cannot.
        takes_gamma: whether with these options it takes the training loss's γ where a search space gives none.
    """

    columns: tuple[str, ...] = ()
    build_many: Callable[..., list[Any]] | None = None
    label: str = ""
    layer: Callable[[Any], nn.Module] | None = None
    takes_gamma: Callable[[Options], bool] = lambda options: False

    @property
    def words(self) -> str:
        """How reports call it."""
        return self.label or self.name.replace("_", " ")


def validation_data(logits: ArrayLike, targets: ArrayLike, bins: int | None = None) -> LogitsAndTargets:
    """Return float64 logits [N, K] and int64 targets [N] that a method can be fitted on.

    Raises PosthocUnavailable for logits that are NaN, +inf or probabilities, labels outside [0, K), targets of one
    class only and, where the method bins, fewer samples than `bins`.
    """
    require_logits(logits, targets, PosthocUnavailable)
    labels = np.asarray(targets, dtype=np.int64)
    faults = bin_faults(len(labels), bins) if bins is not None else []
    if are_probabilities(logits):
        faults.append("the logits are probabilities, each row sums to 1: pass their logarithms")
    if (labels == labels[0]).all():
        faults.append(
            f"all {len(labels)} validation samples are of class {labels[0]}: calibration needs at least two "
            "classes; validate on a stratified split"
        )
    if faults:
        raise PosthocUnavailable("; ".join(faults))
    return finite_logits(np.asarray(logits, dtype=np.float64)), labels


class SoftmaxCalibrator(Calibrator):
    """A map whose probabilities are the softmax of other logits, from which an nll is taken where they underflow."""

    def _probabilities(self, logits: Floats) -> Floats:
        return softmax64(self._mapped(logits))

    def underflowed(self, logits: ArrayLike, probabilities: Floats) -> Floats | None:
        """Return the logits whose softmax `probabilities` are, if one of them underflowed."""
        lost = probabilities.min() < SMALLEST_PROBABILITY
        return self._mapped(finite_logits(np.asarray(logits, dtype=np.float64))) if lost else None

    @abstractmethod
    def _mapped(self, logits: Floats) -> Floats:
        """Return calibrated logits [N, K] of checked float64 logits."""


class CheckedCalibrator(Calibrator):
    """What a user's method returned; its faults are raised as a calibrator raises them."""

    def __init__(self, inner: object, name: str, path: str, columns: Sequence[str], classes: int) -> None:
        """Take over `inner`, which maps logits to probabilities.

        Raises ExtensionError: it cannot be called, or its `parameters` are not those that its `PARAMETERS` name.
        """
        if not callable(inner):
            raise ExtensionError(f"{path} returned a {type(inner).__name__}, which must map logits to probabilities")
        parameters = dict(getattr(inner, "parameters", {}))
        unnamed = sorted(set(parameters) - set(columns))
        if unnamed:
            raise ExtensionError(
                f"{path} has the parameters {', '.join(unnamed)}, which become columns: name them beforehand, "
                f"PARAMETERS = {tuple(sorted(parameters))!r}"
            )
        super().__init__(name, parameters, classes)
        self._inner, self._path = inner, path

    def _probabilities(self, logits: Floats) -> Floats:
        try:
            found: Floats = np.asarray(self._inner(logits), dtype=np.float64)
        except PosthocUnavailable:
            raise
        except Exception as error:
            raise PosthocUnavailable(describe_error(error, self._path)) from error
        if found.shape != logits.shape:
            raise PosthocUnavailable(
                f"its result has shape {found.shape}, which must be that of the logits, {logits.shape}"
            )
        try:
            require_probabilities(found, np.zeros(len(found), dtype=np.int64), bins=1)
        except UnusablePredictions as error:
            raise PosthocUnavailable(f"its {error}") from error
        return found


def _posthoc(target: object, path: str, name: str) -> PosthocMethod:
    if not callable(target):
        raise ExtensionError(f"{path} is {described(target)}; a post-hoc method is called with (logits, targets)")
    columns = tuple(getattr(target, "PARAMETERS", ()))

    def fit(logits: ArrayLike, targets: ArrayLike, **options: HyperparameterValue) -> CheckedCalibrator:
        values, labels = validation_data(logits, targets)
        try:
            inner = target(values, labels, **options)
            return CheckedCalibrator(inner, name, path, columns, np.shape(values)[1])
        except PosthocUnavailable:
            raise
        except Exception as error:
            raise PosthocUnavailable(describe_error(error, path)) from error

    return PosthocMethod(name, fit, hyperparameters_of(target, path, ["logits", "targets"]), columns=columns)


POSTHOC = Registry("post-hoc method", OwnFamily("posthoc", _posthoc), PosthocMethod, ["logits", "targets"])


def fit(name: str, logits: ArrayLike, targets: ArrayLike, **options: HyperparameterValue) -> Calibrator:
    """Fit post-hoc method `name` on validation logits [N, K] and targets [N] and return its calibrator.

    Raises:
        ValueError: unknown name or options, every fault at once.
        PosthocUnavailable: a ValueError too; the data do not allow it (non-finite logits, labels outside [0, K),
            one class only, fewer samples than bins, a request MetaCal cannot meet).
    """
    calibrator: Calibrator = POSTHOC.build(name, logits, targets, **options)
    return calibrator


def fit_many(
    name: str, data: Sequence[tuple[ArrayLike, ArrayLike]], **options: HyperparameterValue
) -> list[Calibrator | PosthocUnavailable]:
    """Fit post-hoc method `name` on several networks' validation logits [N, K] and targets [N], at once where it can.

    Returns, for each, what `fit` returns, or the `PosthocUnavailable` that it raises. Raises ValueError as `fit`.
    """
    component = POSTHOC.get(name)
    if component is not None and component.build_many is not None and not component.faults(options):
        return component.build_many(data, **options)
    found: list[Calibrator | PosthocUnavailable] = []
    for logits, targets in data:
        try:
            found.append(fit(name, logits, targets, **options))
        except PosthocUnavailable as error:
            found.append(error)
    return found


def parameter_names(name: str) -> tuple[str, ...]:
    """Return the keys that `Calibrator.parameters` of method `name` has, in order. Raises ValueError if unknown."""
    unknown = POSTHOC.fault(name)
    if unknown:
        raise ValueError(unknown)
    return POSTHOC[name].columns


def cross_fitted(
    method: str, logits: ArrayLike, targets: ArrayLike, options: Mapping[str, HyperparameterValue]
) -> tuple[Floats, Floats | None]:
    """Return probabilities [N, K] of which fold f's are calibrated by `method` as fitted on the other folds.

    With them, where one underflowed, the logits [N, K] whose softmax they are (`Calibrator.underflowed`). Folds are
    those of refinement: five, each class dealt out in turn (`trainables.metrics.refinement.folds_of`).

    Args:
        method: its name in POSTHOC.
        logits: [N, K].
        targets: [N] class indices.
        options: of the method.

    Raises:
        PosthocUnavailable: there are fewer samples than folds, or the method cannot be fitted without one of them.
    """
    values, labels = np.asarray(logits), np.asarray(targets)
    if len(labels) < FOLDS:
        raise PosthocUnavailable(f"{len(labels)} samples are fewer than the {FOLDS} folds of a cross-fitted {method}")
    fold = folds_of(labels)
    probabilities: Floats = np.empty(values.shape, dtype=np.float64)
    exact: Floats | None = None
    for each in range(FOLDS):
        held_out = fold == each
        calibrator = fit(method, values[~held_out], labels[~held_out], **options)
        probabilities[held_out] = calibrator(values[held_out])
        underflowed = calibrator.underflowed(values[held_out], probabilities[held_out])
        if underflowed is not None:
            exact = np.zeros(values.shape) if exact is None else exact  # of other folds none is needed
            exact[held_out] = underflowed
    return probabilities, exact

"""Users' own post-hoc methods as `Calibrator`s whose probabilities are checked before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from trainables.extensions.own import OwnFamily, described
from trainables.extensions.signature import hyperparameters_of
from trainables.extensions.targets import describe_error
from trainables.metrics.probabilities import Floats, UnusablePredictions, require_probabilities
from trainables.posthoc.base import Calibrator, PosthocUnavailable, validation_data
from trainables.registry import Component, ExtensionError, HyperparameterValue


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


def _posthoc(target: object, path: str, name: str) -> Component:
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

    return Component(name, fit, hyperparameters_of(target, path, ["logits", "targets"]), columns=columns)


OWN_METHODS = OwnFamily("posthoc", _posthoc)

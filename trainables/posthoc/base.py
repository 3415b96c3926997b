"""What all post-hoc methods share: the calibrator they return, the error they raise, the checks before fitting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.probabilities import Floats, Integers, UnusablePredictions, bin_faults, require_logits
from trainables.registry import HyperparameterValue

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
        values = np.asarray(logits, dtype=np.float64)
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

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value:.6g}" for key, value in self.parameters.items())
        return f"{type(self).__name__}({self.name}: {inside})"


def one_by_one(
    fit: Callable[..., Calibrator],
    data: Sequence[tuple[ArrayLike, ArrayLike]],
    options: Mapping[str, HyperparameterValue],
) -> list[Calibrator | PosthocUnavailable]:
    """Return what `fit` makes of each (logits, targets), or why it cannot."""
    found: list[Calibrator | PosthocUnavailable] = []
    for logits, targets in data:
        try:
            found.append(fit(logits, targets, **options))
        except PosthocUnavailable as error:
            found.append(error)
    return found


def validation_data(logits: ArrayLike, targets: ArrayLike, bins: int | None = None) -> LogitsAndTargets:
    """Return float64 logits [N, K] and int64 targets [N] that a method can be fitted on.

    Raises PosthocUnavailable for NaN or infinite logits, labels outside [0, K), targets of one class only and,
    where the method bins, fewer samples than `bins`.
    """
    require_logits(logits, targets, PosthocUnavailable)
    labels = np.asarray(targets, dtype=np.int64)
    faults = bin_faults(len(labels), bins) if bins is not None else []
    if (labels == labels[0]).all():
        faults.append(
            f"all {len(labels)} validation samples are of class {labels[0]}: calibration needs at least two "
            "classes; validate on a stratified split"
        )
    if faults:
        raise PosthocUnavailable("; ".join(faults))
    return np.asarray(logits, dtype=np.float64), labels

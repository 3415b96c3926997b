"""Post-hoc calibration: methods fitted on validation logits and applied to any logits of the same network.

    calibrator = fit("temperature", val_logits, val_targets)
    probabilities = calibrator(test_logits)

Each method is a `Component` of POSTHOC whose build takes (logits, targets, **options) and returns a `Calibrator`.

Methods import numpy, scipy inside functions, and formulas of `trainables` that work on arrays: no data sets, networks
or training.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from trainables.posthoc.base import Calibrator, PosthocUnavailable
from trainables.posthoc.components import POSTHOC
from trainables.registry import HyperparameterValue

__all__ = ["POSTHOC", "Calibrator", "PosthocUnavailable", "fit", "parameter_names"]


def fit(name: str, logits: ArrayLike, targets: ArrayLike, **options: HyperparameterValue) -> Calibrator:
    """Fit post-hoc method `name` on validation logits [N, K] and targets [N] and return its calibrator.

    Raises:
        ValueError: unknown name or options, every fault at once.
        PosthocUnavailable: a ValueError too; the data do not allow it (non-finite logits, labels outside [0, K),
            one class only, fewer samples than bins, a request MetaCal cannot meet).
    """
    calibrator: Calibrator = POSTHOC.build(name, logits, targets, **options)
    return calibrator


def parameter_names(name: str) -> tuple[str, ...]:
    """Return the keys that `Calibrator.parameters` of method `name` has, in order. Raises ValueError if unknown."""
    unknown = POSTHOC.fault(name)
    if unknown:
        raise ValueError(unknown)
    return POSTHOC[name].columns

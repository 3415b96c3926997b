"""Post-hoc calibration: methods fitted on validation logits and applied to any logits of the same network.

    calibrator = fit("temperature", val_logits, val_targets)
    probabilities = calibrator(test_logits)

Each method is a `Component` of POSTHOC whose build takes (logits, targets, **options) and returns a `Calibrator`.

Methods import numpy, scipy inside functions, and formulas of `trainables` that work on arrays: no data sets, networks
or training.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from numpy.typing import ArrayLike

from trainables.posthoc.base import Calibrator, PosthocUnavailable, one_by_one
from trainables.posthoc.components import POSTHOC
from trainables.registry import HyperparameterValue

__all__ = ["POSTHOC", "Calibrator", "PosthocUnavailable", "fit", "fit_many", "parameter_names"]


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
    if component is None or component.build_many is None or component.faults(options):
        return one_by_one(partial(fit, name), data, options)
    return component.build_many(data, **options)


def parameter_names(name: str) -> tuple[str, ...]:
    """Return the keys that `Calibrator.parameters` of method `name` has, in order. Raises ValueError if unknown."""
    unknown = POSTHOC.fault(name)
    if unknown:
        raise ValueError(unknown)
    return POSTHOC[name].columns

"""Post-hoc methods on the very data that they are fitted on, each sample under a fit that has not seen it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from trainables.metrics.probabilities import Floats
from trainables.metrics.refinement import FOLDS, folds_of
from trainables.posthoc.base import PosthocUnavailable
from trainables.posthoc.components import POSTHOC


def cross_fitted(method: str, logits: ArrayLike, targets: ArrayLike, options: Mapping[str, Any]) -> Floats:
    """Return probabilities [N, K] of which fold f's are calibrated by `method` as fitted on the other folds.

    Folds are those of refinement: five, each class dealt out in turn (`trainables.metrics.refinement.folds_of`).

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
    for each in range(FOLDS):
        held_out = fold == each
        calibrator = POSTHOC.build(method, values[~held_out], labels[~held_out], **options)
        probabilities[held_out] = calibrator(values[held_out])
    return probabilities

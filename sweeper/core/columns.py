"""The columns that the settings of a sweep add to `evaluations` and `epochs`, as the measuring modules declare them.

Imports torch, which a process that only reads tables does not need; the schemas are in `sweeper.core.schemas`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweeper.core.schemas import EVALUATION_KEYS, TRIAL_COLUMNS
from trainables.curvature.statistics import CURVATURE_FIELDS
from trainables.curvature.statistics.base import LOSS_LABELS, further_columns
from trainables.metrics import BOOTSTRAPPED, METRIC_NAMES, RECALIBRATED
from trainables.metrics.base import further_metric_names
from trainables.metrics.known_posterior import POSTERIOR_COLUMNS
from trainables.metrics.out_of_distribution import OOD_COLUMNS, other_splits
from trainables.metrics.refinement import REFINEMENT_COLUMNS
from trainables.metrics.weighted import WEIGHTED_COLUMNS
from trainables.posthoc.base import parameter_names
from trainables.posthoc.confidence_regions import REGION_COLUMNS
from trainables.registry import entry_label
from trainables.registry.names import CROSS_FITTED
from trainables.training.prediction import trajectory_columns

#: Norms of the network itself (Mukhoti et al. 2020, Figs. 3–4).
NETWORK_NORMS = ("last_layer_weight_norm", "feature_norm")


def evaluation_columns(
    posthoc_methods: Sequence[str | Mapping[str, Any]],
    metrics: Sequence[str] = (),
    cross_fitted: Sequence[str] = (),
    splits: Sequence[str] = (),
    curvature: object = None,
) -> tuple[str, ...]:
    """Return the columns that an evaluation measures, without its keys (trial, epoch, split …).

    The measuring modules declare their columns, so a new metric is a new column without a change here. A column ending
    in `_unavailable` holds the reason why a group of columns is empty.

    Args:
        posthoc_methods: methods under `evaluation` of a search space; a name alone is a method without a label.
        metrics: names of further metrics.
        cross_fitted: labels of the methods that the objectives need on validation data.
        splits: splits that are evaluated.
        curvature: settings of `evaluation.curvature`.
    """
    known, own = (*POSTERIOR_COLUMNS, *WEIGHTED_COLUMNS), further_metric_names(metrics)
    entries = [{"name": method} if isinstance(method, str) else method for method in posthoc_methods]
    posthoc = [
        f"posthoc_{entry_label(entry)}_{name}"
        for entry in entries
        for name in dict.fromkeys((*parameter_names(entry["name"]), *RECALIBRATED, *known, "unavailable", *own))
    ]
    held_out = [f"{CROSS_FITTED}{label}_{name}" for label in cross_fitted for name in (*RECALIBRATED, "unavailable")]
    hessian = [f"hessian_{loss}_{field}" for loss in LOSS_LABELS for field in CURVATURE_FIELDS]
    hessian += further_columns(curvature, entries)
    errors = [f"{metric}_se" for metric in BOOTSTRAPPED]
    measured = (*METRIC_NAMES, *REFINEMENT_COLUMNS, *errors, *NETWORK_NORMS, *REGION_COLUMNS, *known, *own)
    shifted = OOD_COLUMNS if other_splits(list(splits)) else ()
    return (*measured, *shifted, *posthoc, *held_out, *hessian, "hessian_unavailable", "spectrum_unavailable")


def epoch_columns(trajectory: Mapping[str, object] | None) -> dict[str, type]:
    """Return the columns that a sweep's `evaluation.trajectory` adds to the `epochs` table, with their types."""
    return {} if trajectory is None else trajectory_columns(trajectory)


def usual_columns() -> frozenset[str]:
    """Return the columns of `evaluations` and `trials` that every sweep has."""
    return frozenset({*evaluation_columns(()), *EVALUATION_KEYS, *TRIAL_COLUMNS})

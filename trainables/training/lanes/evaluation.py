"""What lanes that report together measure in one pass: their metrics and, for perceptrons, their curvature.

On small data, calling an operation costs more than computing it, so several networks take little longer than one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np
from torch import nn

from trainables.curvature import CurvatureSettings
from trainables.curvature.lanes import Curvature, Lane, measure_lanes
from trainables.curvature.statistics.base import TEMPERED
from trainables.datasets.base import DataSet
from trainables.metrics import softmax64
from trainables.metrics.base import UnusablePredictions, require_probabilities
from trainables.training.evaluation import (
    EvaluationSettings,
    Predictions,
    Shared,
    curvature_losses,
    curvature_subset,
    metrics_of_networks,
    predictions_of,
)
from trainables.training.loop import Replicate
from trainables.training.prediction import logits_and_norms

#: Number of logits of a split above which networks are evaluated one by one: calls no longer cost more than sums.
SMALL_SPLIT = 2**16

#: Number of logits that are measured together, which bounds the memory.
MEASURED_TOGETHER = 2**20


def measured_together(lanes: Sequence[tuple[Replicate, str]], settings: EvaluationSettings) -> dict[Replicate, Shared]:
    """Measure replicates together; return per replicate the result for `Replicate.evaluate`.

    This is their curvature (see `measure_lanes`) and, on small splits, their metrics (see `evaluated_together`).
    All replicates have the same `cohort_key`. A replicate measures by itself whatever cannot be measured together.

    Args:
        lanes: replicates with the stage of their evaluation.
        settings: settings of the evaluations.
    """
    if not lanes:
        return {}
    models, dataset = [replicate.measured for replicate, _ in lanes], lanes[0][0].dataset
    with ExitStack() as weights:
        for replicate, stage in lanes:
            weights.enter_context(replicate.weights_of(stage))
        evaluated = evaluated_together(models, dataset, settings)
        curvature = _curvature_together([replicate for replicate, _ in lanes], settings.curvature)
    together = zip(lanes, curvature, evaluated, strict=True)
    return {replicate: Shared(own, *numbers) for (replicate, _), own, numbers in together}


def _curvature_together(lanes: Sequence[Replicate], settings: CurvatureSettings | None) -> list[Curvature | None]:
    # `tempered` needs each network's fitted temperature, which only its evaluation knows.
    if settings is None or TEMPERED in settings.losses:
        return [None] * len(lanes)
    inputs, targets, weights = curvature_subset(lanes[0].dataset.val, settings.samples)
    # A weighted mean is no mean over samples of equal weight, which lanes assume.
    if weights is not None:
        return [None] * len(lanes)
    networks = [Lane(own.measured, curvature_losses(own.loss, settings), own.seed) for own in lanes]
    return measure_lanes(networks, inputs, targets, settings=settings)


def evaluated_together(
    models: Sequence[nn.Module], dataset: DataSet, settings: EvaluationSettings
) -> list[tuple[Predictions | None, Mapping[str, Mapping[str, float]]]]:
    """Return per network its predictions and split → metrics, equal to the last bit to those of `evaluate`.

    The predictions are `None` if splits are large, and metrics are missing if they cannot be computed.
    """
    if any(len(dataset.splits[name]) * dataset.classes > SMALL_SPLIT for name in settings.splits):
        return [(None, {})] * len(models)
    predicted = predictions_of(models, dataset, settings, logits_and_norms)
    metrics: list[dict[str, Mapping[str, float]]] = [{} for _ in models]
    for name in settings.splits:
        targets = predicted[0].targets[name]
        at_once = max(1, MEASURED_TOGETHER // predicted[0].logits[name].size)
        sound = [lane for lane, own in enumerate(predicted) if _are_sound(own.logits[name], targets, settings.bins)]
        for start in range(0, len(sound), at_once):
            lanes = sound[start : start + at_once]
            logits = np.stack([predicted[lane].logits[name] for lane in lanes])
            rows = metrics_of_networks(logits, softmax64(logits), targets, settings.bins, settings.bootstrap)
            for lane, row in zip(lanes, rows, strict=True):
                metrics[lane][name] = row
    return [*zip(predicted, metrics, strict=True)]


def _are_sound(logits: np.ndarray, targets: np.ndarray, bins: int) -> bool:
    try:
        require_probabilities(softmax64(logits), targets, bins)
    except UnusablePredictions:
        return False
    return True

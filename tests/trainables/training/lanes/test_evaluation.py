"""Lanes that are evaluated together get the numbers that each gets alone, whatever becomes of their neighbours."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.trainables.training.lanes.comparison import digits
from tests.trainables.training.lanes.filling import of_every_loss, together
from trainables.curvature import CURVATURE_FIELDS
from trainables.metrics.base import UnusablePredictions
from trainables.training import evaluation
from trainables.training.evaluation import EvaluationSettings
from trainables.training.lanes import evaluation as lanes_evaluation
from trainables.training.lanes.evaluation import measured_together

SMALL_MLP = {"name": "mlp", "width": 20}


def test_evaluations_of_lanes_share_their_curvature(double, monkeypatch):
    data, values = digits(torch.float64), of_every_loss(SMALL_MLP)[::3]
    held = [replicate for replicate, _ in together(values, data, 1, width=7, seed=0)]
    curvature = {"samples": 40, "lanczos_steps": 3, "trace_probes": 2}
    settings = EvaluationSettings.from_mapping({"bootstrap": 0, "posthoc": [], "curvature": curvature})
    expected = [replicate.evaluate(settings, "rung").rows for replicate in held]
    shared = measured_together([(replicate, "rung") for replicate in held], settings)
    found = [replicate.evaluate(settings, "rung", shared[replicate]).rows for replicate in held]
    monkeypatch.setattr(evaluation, "measure_by_block", None)
    held[0].evaluate(settings, "rung", shared[held[0]])
    for mine, theirs in zip(expected, found, strict=True):
        alone_row, lane_row = ({k: v for k, v in rows[0].items() if "hessian" in k} for rows in (mine, theirs))
        assert len(alone_row) == 2 * len(CURVATURE_FIELDS)
        assert alone_row == pytest.approx(lane_row, rel=1e-9, abs=1e-12)


def test_weighted_samples_are_measured_with_their_weights(double):
    data, values = digits(torch.float64), of_every_loss(SMALL_MLP)[:2]
    weights = 1 + torch.arange(len(data.val), dtype=torch.float64) % 3
    held = [replicate for replicate, _ in together(values, data, 1, width=2, seed=0)]
    settings = EvaluationSettings.from_mapping({"bootstrap": 0, "posthoc": [], "curvature": {"lanczos_steps": 3}})

    def trace(replicate, shared=None):
        return replicate.evaluate(settings, "rung", shared).rows[0]["hessian_training_trace"]

    unweighted = [trace(replicate) for replicate in held]
    for replicate in held:
        replicate.dataset = replace(data, val=replace(data.val, weights=weights))
    alone = [trace(replicate) for replicate in held]
    shared = measured_together([(replicate, "rung") for replicate in held], settings)
    assert [trace(replicate, shared[replicate]) for replicate in held] == alone
    assert all(abs(one / other - 1) > 1e-3 for one, other in zip(alone, unweighted, strict=True))


def test_evaluations_of_lanes_share_their_metrics_and_change_no_bit(monkeypatch):
    data, values = digits(torch.float32), of_every_loss(SMALL_MLP)[::3]
    held = [replicate for replicate, _ in together(values, data, 1, width=7, seed=0)]
    settings = EvaluationSettings.from_mapping({"bootstrap": 5, "posthoc": ["temperature"]})
    expected = [replicate.evaluate(settings, "rung") for replicate in held]
    measured, whole = [], evaluation.metrics_of_networks
    for module in (evaluation, lanes_evaluation):
        monkeypatch.setattr(
            module, "metrics_of_networks", lambda *given: measured.append(len(given[0])) or whole(*given)
        )
    shared = measured_together([(replicate, "rung") for replicate in held], settings)
    found = [replicate.evaluate(settings, "rung", shared[replicate]) for replicate in held]
    assert measured == [len(held)] * 2, "once a split"
    assert [repr(own.rows) for own in found] == [repr(own.rows) for own in expected]
    for own, other in zip(found, expected, strict=True):
        assert all((own.logits[name] == other.logits[name]).all() for name in other.logits)
    monkeypatch.setattr(lanes_evaluation, "SMALL_SPLIT", 0)
    measured.clear()
    shared = measured_together([(replicate, "rung") for replicate in held], settings)
    assert repr(held[0].evaluate(settings, "rung", shared[held[0]]).rows) == repr(expected[0].rows)
    assert measured == [1, 1], "networks with large splits are measured one by one"


def test_a_lane_without_finite_logits_spoils_no_other():
    data, values = digits(torch.float32), of_every_loss(SMALL_MLP)[::5]
    held = [replicate for replicate, _ in together(values, data, 1, width=5, seed=0)]
    settings = EvaluationSettings(bootstrap=0)
    expected = [replicate.evaluate(settings, "rung") for replicate in held]
    with torch.no_grad():
        next(held[1].model.parameters()).fill_(math.inf)
    shared = measured_together([(replicate, "rung") for replicate in held], settings)
    for lane, (replicate, before) in enumerate(zip(held, expected, strict=True)):
        if lane != 1:
            assert repr(replicate.evaluate(settings, "rung", shared[replicate]).rows) == repr(before.rows)
    with pytest.raises(UnusablePredictions, match="must be finite"):
        held[1].evaluate(settings, "rung", shared[held[1]])

"""Ensemble temperature scaling against a grid over the simplex, and what it must keep."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.trainables.predictions import drawn_predictions
from trainables.metrics import evaluate_probabilities
from trainables.metrics.base import softmax64
from trainables.posthoc import fit


@pytest.mark.parametrize("objective", ["nll", "brier"])
@pytest.mark.parametrize("seed", range(2))
def test_no_weights_on_a_grid_are_better(objective: str, seed: int) -> None:
    logits, targets = drawn_predictions(seed, 300, 4, 3)
    found = fit("ensemble_temperature", logits, targets, objective=objective)
    temperature = fit("temperature", logits, targets).parameters["temperature"]
    assert found.parameters["temperature"] == pytest.approx(temperature) and found.parameters["converged"] == 1
    best = evaluate_probabilities(found(logits), targets)[objective]
    for first, second in itertools.product(np.linspace(0, 1, 21), repeat=2):
        if first + second <= 1:
            mixed = first * softmax64(logits / temperature) + second * softmax64(logits) + (1 - first - second) / 4
            assert best <= evaluate_probabilities(mixed, targets)[objective] + 1e-7


@pytest.mark.parametrize("seed", range(4))
def test_weights_lie_on_the_simplex_and_predictions_stay(seed: int) -> None:
    logits, targets = drawn_predictions(seed, 200, 5, 2)
    found = fit("ensemble_temperature", logits, targets)
    weights = [found.parameters[f"weight_{name}"] for name in ("scaled", "plain", "uniform")]
    assert min(weights) >= 0 and sum(weights) == pytest.approx(1)
    np.testing.assert_array_equal(found(logits).argmax(1), logits.argmax(1))


@pytest.mark.parametrize("objective", ["nll", "brier"])
def test_separated_data_leave_a_confident_error_finite(objective: str) -> None:
    targets = np.arange(18) % 3
    logits = 8.0 * np.eye(3)[targets] + np.random.default_rng(0).normal(size=(18, 3))
    found = fit("ensemble_temperature", logits, targets, objective=objective)
    assert found.parameters["at_bound"] == 1
    assert evaluate_probabilities(found(logits), (targets + 1) % 3)["nll"] < 12
    plain = fit("ensemble_temperature", np.r_[logits, logits], np.r_[targets, (targets + 1) % 3], objective=objective)
    assert plain.parameters["at_bound"] == 0

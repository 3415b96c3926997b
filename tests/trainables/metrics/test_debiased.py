"""Debiased errors against plain loops, against what is known in expectation, and uncertainty-calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.trainables.reference_metrics import random_case
from trainables.metrics.binning import calibration_error
from trainables.metrics.debiased import classwise_debiased_l2, debiased_l2, debiased_squared_error, ece_bias


def naive(confidence: np.ndarray, outcome: np.ndarray, bins: int) -> float:
    order = sorted(range(len(confidence)), key=lambda at: confidence[at])
    total = 0.0
    for group in np.array_split(order, bins):
        n = len(group)
        if n > 1:
            accuracy = sum(outcome[at] for at in group) / n
            gap = accuracy - sum(confidence[at] for at in group) / n
            total += n / len(confidence) * (gap**2 - accuracy * (1 - accuracy) / (n - 1))
    return total


@pytest.mark.parametrize("seed", range(20))
def test_equals_a_plain_loop(seed: int) -> None:
    probabilities, targets = random_case(seed)
    confidence, correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
    for bins in (1, 4, 15):
        expected = naive(confidence, correct, bins)
        assert debiased_squared_error(confidence, correct, bins) == pytest.approx(expected, abs=1e-12)
        assert debiased_l2(probabilities, targets, bins) == pytest.approx(math.sqrt(max(0, expected)), abs=1e-9)
    each = [naive(probabilities[:, k], (targets == k).astype(float), 15) for k in range(probabilities.shape[1])]
    found = classwise_debiased_l2(probabilities, targets)
    assert found == pytest.approx(math.sqrt(max(0, np.mean(each))), abs=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_the_squared_error_is_unbiased_where_the_binned_one_is_not(shift: float) -> None:
    rng = np.random.default_rng(1)
    confidence = np.sort(rng.uniform(0.2, 0.8, 150))
    true = np.add.reduceat(np.full(150, shift), np.arange(0, 150, 10)) / 10
    expected = float((true**2).mean())
    found, plain = [], []
    for _ in range(2000):
        outcome = (rng.random(150) < confidence + shift).astype(float)
        found.append(debiased_squared_error(confidence, outcome, 15))
        plain.append(calibration_error(confidence, outcome, 15, "equal_mass", norm="root_mean_square") ** 2)
    error = np.std(found) / len(found) ** 0.5
    # within a bin, outcomes of different confidences vary less than draws of one probability, by (conf's variance)/n
    assert np.mean(found) == pytest.approx(expected, abs=4 * error + 1e-4)
    assert np.mean(plain) > expected + 0.015


@pytest.mark.parametrize("scheme", ["equal_width", "equal_mass"])
def test_the_bias_of_ece_is_what_calibrated_labels_give(scheme: str) -> None:
    probabilities, targets = random_case(5, samples=300, classes=3)
    confidence, rng = probabilities.max(1), np.random.default_rng(9)
    drawn = [
        calibration_error(confidence, (rng.random(300) < confidence).astype(float), 15, scheme) for _ in range(2000)
    ]
    found = ece_bias(probabilities, targets, scheme=scheme, repetitions=2000)
    assert found == pytest.approx(np.mean(drawn), abs=5 * np.std(drawn) / 2000**0.5)
    assert found == ece_bias(probabilities, targets * 0, scheme=scheme, repetitions=2000), "labels do not enter"


def test_blocks_of_repetitions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities, targets = random_case(2, samples=100)
    expected = ece_bias(probabilities, targets, repetitions=7)
    monkeypatch.setattr("trainables.metrics.debiased._BLOCK_ELEMENTS", 300)
    assert ece_bias(probabilities, targets, repetitions=7) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_uncertainty_calibration_agrees_on_the_same_bins(seed: int) -> None:
    utils = pytest.importorskip("calibration.utils")
    rng = np.random.default_rng(seed)
    # both packages put equal confidences into one bin: values on a grid are bins of their own
    levels = np.linspace(0.05, 0.95, 10)
    confidence = rng.choice(levels, 500)
    outcome = (rng.random(500) < confidence**1.3).astype(float)
    binned = utils.bin(list(zip(confidence, outcome, strict=True)), utils.get_discrete_bins(confidence))
    ours = debiased_squared_error(confidence, outcome, 10, "equal_width")
    assert ours == pytest.approx(float(utils.unbiased_square_ce(binned)), abs=1e-9)

"""SKCE against a plain double loop, its unbiasedness, and the size and power of the test.

Smooth ECE against its definition by plain sums.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.trainables.reference_metrics import random_case
from trainables.metrics.kernel import (
    bandwidth,
    classwise_smooth_ece,
    kernel_calibration_p,
    smooth_calibration_error,
    smooth_ece,
    squared_kernel_calibration_error,
)


def naive(probabilities: np.ndarray, targets: np.ndarray) -> float:
    samples, width = len(targets), bandwidth(probabilities)
    unit = np.eye(probabilities.shape[1])
    found = [
        math.exp(-math.dist(probabilities[i], probabilities[j]) / width)
        * float((unit[targets[i]] - probabilities[i]) @ (unit[targets[j]] - probabilities[j]))
        for i in range(samples)
        for j in range(i)
    ]
    return math.fsum(found) / len(found)


def calibrated(rng: np.random.Generator, samples: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    probabilities = rng.dirichlet(np.ones(classes), samples)
    drawn = (probabilities.cumsum(axis=1) > rng.random(samples)[:, None]).argmax(axis=1)
    return probabilities, drawn


@pytest.mark.parametrize("seed", range(10))
def test_equals_a_double_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities, targets = random_case(seed)
    expected = naive(probabilities, targets)
    assert squared_kernel_calibration_error(probabilities, targets) == pytest.approx(expected, abs=1e-12)
    monkeypatch.setattr("trainables.metrics.kernel.BLOCK_ROWS", 7)
    assert squared_kernel_calibration_error(probabilities, targets) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_bandwidth_is_the_median_distance(seed: int) -> None:
    probabilities, _ = random_case(seed)
    each = [math.dist(a, b) for at, a in enumerate(probabilities) for b in probabilities[:at]]
    middle = np.sort(each)[[(len(each) - 1) // 2, len(each) // 2]]
    assert middle[0] - 1e-9 <= bandwidth(probabilities) <= middle[1] + 1e-9
    assert bandwidth(np.full((5, 2), 0.5)) == 1.0


@pytest.mark.slow
def test_its_mean_is_zero_for_calibrated_networks_and_the_test_keeps_its_size() -> None:
    rng, found, rejected = np.random.default_rng(0), [], {2: 0, 10: 0}
    for _ in range(1500):
        probabilities, targets = calibrated(rng, 200, 4)
        found.append(squared_kernel_calibration_error(probabilities, targets))
        for block in rejected:
            rejected[block] += kernel_calibration_p(probabilities, targets, block) < 0.05
    assert abs(np.mean(found)) < 4 * np.std(found) / 1500**0.5
    assert min(found) < 0 < max(found)
    for block, count in rejected.items():
        assert count / 1500 <= 0.05 + 4 * (0.05 * 0.95 / 1500) ** 0.5, block


def test_the_test_sees_an_overconfident_network() -> None:
    rng = np.random.default_rng(1)
    probabilities, targets = calibrated(rng, 2000, 4)
    sure = probabilities**3 / (probabilities**3).sum(axis=1, keepdims=True)
    for block in (10, 40):
        assert kernel_calibration_p(sure, targets, block) < 1e-3 < kernel_calibration_p(probabilities, targets, block)
    assert squared_kernel_calibration_error(sure, targets) > 10 * abs(
        squared_kernel_calibration_error(probabilities, targets)
    )


def test_too_few_samples_have_no_number() -> None:
    probabilities, targets = random_case(0, samples=20)
    assert math.isnan(squared_kernel_calibration_error(probabilities[:1], targets[:1]))
    assert math.isnan(kernel_calibration_p(probabilities, targets, 11))


GRID = np.linspace(0, 1, 3001)


def by_definition(confidence: np.ndarray, outcome: np.ndarray, sigma: float) -> float:
    """∫ |(1/n) Σ (y − c) K(t, c)| dt by the trapezoidal rule, the kernel summed over the images of c in the walls."""
    total = np.zeros_like(GRID)
    for c, y in zip(confidence, outcome, strict=True):
        images = [2 * k + sign * c for k in range(-6, 7) for sign in (1, -1)]
        total += (y - c) * sum(np.exp(-((GRID - at) ** 2) / (2 * sigma**2)) for at in images)
    density = np.abs(total) / (np.sqrt(2 * np.pi) * sigma * len(confidence))
    return float(np.trapezoid(density, GRID))


@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_scale_at_which_error_and_scale_agree(seed: int) -> None:
    probabilities, targets = random_case(seed)
    confidence, correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
    found = smooth_ece(probabilities, targets)
    assert found > 0
    assert by_definition(confidence, correct, found) == pytest.approx(found, rel=2e-3)


def test_known_values() -> None:
    # one point mass of residual at 1/2: no smoothing reduces the integral of its absolute value
    half = np.full(100, 0.5)
    assert smooth_calibration_error(half, np.ones(100)) == pytest.approx(0.5, abs=1e-6)
    assert smooth_calibration_error(half, np.arange(100) % 2 * 1.0) == 0.0
    assert smooth_calibration_error(np.zeros(10), np.zeros(10)) == smooth_calibration_error(np.ones(9), np.ones(9)) == 0
    assert smooth_calibration_error(np.ones(10), np.zeros(10)) == pytest.approx(1.0, abs=2e-3)


def test_of_classes_it_is_the_mean() -> None:
    probabilities, targets = random_case(3, samples=80, classes=4)
    each = [smooth_calibration_error(probabilities[:, k], (targets == k).astype(float)) for k in range(4)]
    assert classwise_smooth_ece(probabilities, targets) == pytest.approx(np.mean(each))


def test_it_hardly_moves_where_predictions_hardly_move() -> None:
    probabilities, targets = random_case(1, samples=60)
    shifted = probabilities + np.random.default_rng(0).uniform(0, 1e-5, probabilities.shape)
    shifted /= shifted.sum(axis=1, keepdims=True)
    assert smooth_ece(shifted, targets) == pytest.approx(smooth_ece(probabilities, targets), abs=1e-4)


def test_of_calibrated_networks_it_falls_with_samples() -> None:
    rng = np.random.default_rng(0)
    found = []
    for samples in (100, 1_000, 30_000):
        confidence = rng.uniform(0.3, 1, samples)
        found.append(smooth_calibration_error(confidence, (rng.random(samples) < confidence).astype(float)))
    assert found[0] > found[1] > found[2] and found[2] < 0.02

"""Smooth ECE against its definition by plain sums and, where it is installed, relplot."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainables.reference_metrics import random_case
from trainables.metrics.smooth import classwise_smooth_ece, smooth_calibration_error, smooth_ece

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


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("samples", [100, 2_000])
def test_relplot_agrees_within_its_steps(seed: int, samples: int) -> None:
    """Its bisection stops at 2^−10 below the scale, so its error is up to 1e-3 above ours."""
    relplot = pytest.importorskip("relplot")
    probabilities, targets = random_case(seed, samples=samples)
    confidence, correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
    assert smooth_ece(probabilities, targets) == pytest.approx(float(relplot.smECE(confidence, correct)), abs=1.5e-3)

"""SKCE against a plain double loop, its unbiasedness, and the size and power of the test."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.trainables.reference_metrics import random_case
from trainables.metrics.kernel import bandwidth, kernel_calibration_p, squared_kernel_calibration_error


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

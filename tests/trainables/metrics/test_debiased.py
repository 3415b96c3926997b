"""Debiased errors against plain loops and what is known in expectation.

Cutoff error and T-Cal against plain loops, and the level and power of both tests.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.trainables.reference_metrics import random_case
from trainables.metrics.base import METRICS
from trainables.metrics.binning import calibration_error
from trainables.metrics.debiased import (
    LEAST,
    MOST,
    classwise_debiased_l2,
    cutoff_statistic,
    debiased_l2,
    debiased_squared_error,
    ece_bias,
    ece_excess,
    monte_carlo_p,
    t_cal_statistic,
)


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


STATISTICS = {"cutoff": cutoff_statistic, "t_cal": t_cal_statistic}


def cutoff(confidence, correct):
    """The largest sum of residuals over every interval between two confidences."""
    values, worst = sorted(set(confidence)), 0.0
    for low in values:
        for high in values:
            inside = [r - c for c, r in zip(confidence, correct, strict=True) if low <= c <= high]
            worst = max(worst, abs(math.fsum(inside)))
    return worst / len(confidence)


def t_cal(confidence, correct, finest=10):
    """Pairs of samples in one bin, one bin at a time, over the standard deviation under the hypothesis."""
    largest = 0.0
    for scale in range(1, finest + 1):
        total = variance = 0.0
        for cell in range(2**scale):
            mine = [i for i, c in enumerate(confidence) if min(int(c * 2**scale), 2**scale - 1) == cell]
            for i in mine:
                for j in mine:
                    if i != j:
                        total += (correct[i] - confidence[i]) * (correct[j] - confidence[j]) / len(mine)
                        product = confidence[i] * (1 - confidence[i]) * confidence[j] * (1 - confidence[j])
                        variance += 2 * product / len(mine) ** 2
        if variance > 0:
            largest = max(largest, total / math.sqrt(variance))
    return largest


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("decimals", [12, 1])
def test_statistics_equal_the_loops_ties_included(seed, decimals):
    probabilities, targets = random_case(seed, samples=40)
    confidence, correct = probabilities.max(1).round(decimals), (probabilities.argmax(1) == targets).astype(float)
    order = np.argsort(confidence, kind="stable")
    ascending, outcome = confidence[order], correct[order][None]
    assert cutoff_statistic(ascending)(outcome)[0] == pytest.approx(cutoff(confidence, correct), abs=1e-12)
    assert t_cal_statistic(ascending)(outcome)[0] == pytest.approx(t_cal(confidence, correct), abs=1e-9)
    if decimals == 12:
        assert METRICS.build("cutoff_error", probabilities, targets) == pytest.approx(cutoff(confidence, correct))


@pytest.mark.parametrize("name", STATISTICS)
def test_calibrated_networks_are_rejected_as_often_as_promised(name):
    rng = np.random.default_rng(1)
    ps = []
    for _ in range(1000):
        confidence = np.sort(rng.uniform(0.3, 1, 60))
        correct = (rng.random(60) < confidence).astype(float)
        ps.append(monte_carlo_p(confidence, correct, STATISTICS[name](confidence), 19, int(rng.integers(2**32))))
    for alpha in (0.05, 0.1, 0.5):
        assert np.mean(np.array(ps) <= alpha) < alpha + 4 * math.sqrt(alpha * (1 - alpha) / 1000)
    assert np.mean(np.array(ps) <= 0.5) > 0.4, "nor much less often"


def test_what_each_test_sees():
    rng = np.random.default_rng(2)
    confidence = np.sort(rng.uniform(0.4, 0.9, 2000))
    over, wiggling = confidence - 0.06, confidence + 0.1 * np.where((confidence * 64).astype(int) % 2, 1, -1)
    found = {}
    for kind, truth in (("over", over), ("wiggling", wiggling)):
        correct = (rng.random(2000) < truth).astype(float)
        found[kind] = {
            name: monte_carlo_p(confidence, correct, STATISTICS[name](confidence), 199, 0) for name in STATISTICS
        }
    assert max(found["over"].values()) < 0.02
    assert found["wiggling"]["t_cal"] < 0.02 < found["wiggling"]["cutoff"]


def test_sure_and_right_is_no_evidence():
    probabilities = np.array([[1.0, 0.0]] * 20)
    targets = np.zeros(20, dtype=np.int64)
    assert METRICS.build("cutoff_p", probabilities, targets) == METRICS.build("t_cal_p", probabilities, targets) == 1.0


def test_the_two_bounds_of_the_excess_lie_on_both_sides_of_it() -> None:
    z, step = np.linspace(-12, 12, 4801, retstep=True)
    for mu in np.linspace(0, 6, 61):
        density = np.exp(-((z - mu) ** 2) / 2) / math.sqrt(2 * math.pi) * step
        excess = float(density @ np.abs(z)) - mu
        low, high = (sum(a * float(density @ np.exp(-((z / s) ** 2) / 2)) for a, s in terms) for terms in (LEAST, MOST))
        assert low - 1e-3 <= excess <= high + 1e-3


@pytest.mark.parametrize("scheme", ["equal_width", "equal_mass"])
def test_the_mean_error_of_few_samples_exceeds_that_of_many_by_as_much_as_is_said(scheme: str) -> None:
    rng = np.random.default_rng(8)
    for gap in (0.0, 0.1, 0.3):

        def drawn(samples: int, gap: float = gap) -> tuple[np.ndarray, np.ndarray]:
            confidence = rng.uniform(0.3, 1.0, samples)
            return confidence, (rng.random(samples) < confidence - gap).astype(float)

        confidence, outcome = drawn(400_000)
        truth = np.mean([calibration_error(confidence, outcome, 15, scheme, "mean")])
        few = [drawn(300) for _ in range(200)]
        excess = float(np.mean([calibration_error(*one, 15, scheme, "mean") for one in few])) - truth
        low, high = np.mean([ece_excess(*one, 15, scheme) for one in few], axis=0)
        assert low - 0.004 <= excess <= high + 0.004, "two standard errors of 200 draws"

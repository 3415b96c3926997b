"""Variational errors against loops, known errors and what they promise: a lower bound in expectation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.trainables.reference_metrics import random_case
from trainables.metrics.base import METRICS
from trainables.metrics.refinement import FOLDS
from trainables.metrics.variational import dual_gain

TOP = ("variational_error", "overconfidence", "underconfidence")


def of_binary(confidence, correct):
    """The three errors of two-class predictions with these top confidences."""
    probabilities, targets = np.stack([confidence, 1 - confidence], axis=1), (1 - correct).astype(np.int64)
    return [METRICS.build(name, probabilities, targets) for name in TOP]


@pytest.mark.parametrize("seed", range(8))
def test_equals_a_loop_over_scikit_learns_regressions(seed):
    from sklearn.isotonic import IsotonicRegression

    probabilities, targets = random_case(seed, samples=90)
    confidence, correct = probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)
    over = under = 0.0
    for at in range(90):
        rest = [i for i in range(90) if i % FOLDS != at % FOLDS]
        fitted = IsotonicRegression(out_of_bounds="clip").fit(confidence[rest], correct[rest])
        moved = float(fitted.predict(confidence[at : at + 1])[0])
        over += (moved < confidence[at]) * (confidence[at] - correct[at]) / 90
        under += (moved > confidence[at]) * (correct[at] - confidence[at]) / 90
    found = [METRICS.build(name, probabilities, targets) for name in TOP]
    assert found == pytest.approx([over + under, over, under], abs=1e-12)


@pytest.mark.parametrize("norm", [1.0, 1.5, 2.0, 4.0])
def test_the_gain_is_the_norm_where_the_outcome_is_the_recalibration(norm):
    """s(d)ᵀd = ‖d‖, and no other direction of dual norm 1 gains more."""
    f, _ = random_case(0, samples=30, classes=4)
    g, _ = random_case(1, samples=30, classes=4)
    wanted = np.linalg.norm(g - f, norm, axis=1)
    np.testing.assert_allclose(dual_gain(f, g, g, norm), wanted)
    other, _ = random_case(2, samples=30, classes=4)
    assert (dual_gain(f, other, g, norm) <= wanted + 1e-12).all()
    assert (dual_gain(f, f, g, norm) == 0).all()


@pytest.mark.parametrize("shift", [-0.1, 0.0, 0.1])
def test_the_mean_is_near_the_error_and_never_above_it(shift):
    """Over- and underconfidence apart; the ECE of a calibrated network of 300 samples is .06, this is 0."""
    rng, found = np.random.default_rng(5), []
    for _ in range(300):
        confidence = rng.uniform(0.6, 0.9, 300)
        found.append(of_binary(confidence, rng.random(300) < confidence - shift))
    error, over, under = np.mean(found, axis=0)
    noise = 4 * np.std(found, axis=0).max() / math.sqrt(300)
    assert error <= abs(shift) + noise
    assert error >= abs(shift) - 0.02
    assert error == pytest.approx(over + under)
    assert max(shift, 0) - 0.02 < over < max(shift, 0) + noise
    assert max(-shift, 0) - 0.02 < under < max(-shift, 0) + noise


def test_of_all_classes_it_sees_a_wrong_temperature_and_nothing_else():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(4000, 5)) * 2
    truth = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    targets = (rng.random((4000, 1)) > truth.cumsum(1)).sum(1)
    sharp = np.exp(2 * logits) / np.exp(2 * logits).sum(1, keepdims=True)
    for norm in (1.0, 2.0):
        exact = np.linalg.norm(sharp - truth, norm, axis=1).mean()
        assert METRICS.build("variational_lp", sharp, targets, norm=norm) == pytest.approx(exact, abs=0.02)
        assert abs(METRICS.build("variational_lp", truth, targets, norm=norm)) < 0.02


def test_few_samples_have_none():
    probabilities, targets = random_case(0, samples=4, classes=3)
    assert all(math.isnan(METRICS.build(name, probabilities, targets)) for name in (*TOP, "variational_lp"))

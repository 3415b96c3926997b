"""Metrics of the probability of class 1, against torchmetrics, scikit-learn and sums written out."""

from __future__ import annotations

import numpy as np
import pytest

from trainables.metrics.two_classes import (
    calibration_intercept,
    calibration_slope,
    ece_positive,
    ks_error,
    kuiper_error,
    spiegelhalter_z,
)


def drawn(seed: int, samples: int = 400, slope: float = 1.0, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities [N, 2] of logit x and targets whose logit is `shift` + `slope`·x."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 2, samples)
    p = 1 / (1 + np.exp(-x))
    targets = (random.random(samples) < 1 / (1 + np.exp(-(shift + slope * x)))).astype(int)
    return np.stack([1 - p, p], axis=1), targets


@pytest.mark.parametrize("seed", range(5))
def test_ece_of_class_1_is_that_of_torchmetrics(seed: int) -> None:
    torch, functional = pytest.importorskip("torch"), pytest.importorskip("torchmetrics.functional.classification")
    p, y = drawn(seed, slope=0.5)
    expected = functional.binary_calibration_error(torch.from_numpy(p[:, 1]), torch.from_numpy(y), n_bins=15, norm="l1")
    assert ece_positive(p, y) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_line_is_that_of_a_logistic_regression_without_penalty(seed: int) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    p, y = drawn(seed, slope=0.4 + 0.3 * seed, shift=0.5 - 0.2 * seed)
    x = np.log(p[:, 1] / p[:, 0])
    line = linear.LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x[:, None], y)
    assert calibration_slope(p, y) == pytest.approx(float(line.coef_[0, 0]), rel=1e-4)
    intercept = calibration_intercept(p, y)
    assert (1 / (1 + np.exp(-(intercept + x)))).mean() == pytest.approx(y.mean(), abs=1e-9)  # its normal equation


def test_a_line_that_has_no_maximum_is_undefined() -> None:
    p = np.array([0.2, 0.3, 0.7, 0.8])
    separated = np.stack([1 - p, p], axis=1), np.array([0, 0, 1, 1])
    assert np.isnan(calibration_slope(*separated))
    same = separated[0], np.ones(4, int)
    assert np.isnan(calibration_slope(*same)) and np.isnan(calibration_intercept(*same))
    constant = np.full((4, 2), 0.5), np.array([0, 1, 1, 1])
    assert np.isnan(calibration_slope(*constant))
    assert calibration_intercept(*constant) == pytest.approx(np.log(3))


def test_spiegelhalters_test_has_its_level_where_probabilities_are_calibrated_and_power_where_not() -> None:
    calibrated = [abs(spiegelhalter_z(*drawn(seed))) > 1.96 for seed in range(600)]
    assert 0.03 < np.mean(calibrated) < 0.07  # 5 %; the standard error of 600 draws is 0.9 %
    sharp = [abs(spiegelhalter_z(*drawn(seed, slope=0.5))) > 1.96 for seed in range(100)]
    assert np.mean(sharp) > 0.95


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 4])
def test_cumulative_errors_are_those_of_a_loop_over_thresholds(seed: int, classes: int) -> None:
    random = np.random.default_rng(seed)
    p = np.round(random.dirichlet(np.ones(classes), 60), 1)  # ties
    y = random.integers(0, classes, 60)
    judged = p[:, 1] if classes == 2 else p.max(1)
    happened = (y == 1) if classes == 2 else (p.argmax(1) == y)
    gaps = [np.where(judged <= t, happened - judged, 0).mean() for t in [-1, *np.unique(judged)]]
    assert ks_error(p, y) == pytest.approx(max(map(abs, gaps)))
    assert kuiper_error(p, y) == pytest.approx(max(gaps) - min(gaps))

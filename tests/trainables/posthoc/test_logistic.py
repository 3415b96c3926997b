"""Platt scaling, beta and spline calibration against scikit-learn and netcal; scaling-binning against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from tests.trainables.predictions import drawn_predictions
from trainables.metrics.base import softmax64
from trainables.posthoc import fit
from trainables.posthoc.logistic import QUANTILES

SIZES = [(2, 300), (3, 900), (5, 700)]


def log_odds(logits):
    """Log-odds of each class, from the definition."""
    p = softmax64(logits)
    return np.log(p / (1 - p))


def normalised(columns):
    stacked = np.stack(columns, axis=1)
    return stacked / stacked.sum(axis=1, keepdims=True)


def regression(design, outcome, unseen):
    """Probabilities and weights of scikit-learn's regression, with one more sample of either label spread over all."""
    model = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-12, max_iter=10_000, solver="newton-cholesky")
    positive, negative = outcome.sum(), (~outcome).sum()
    share = np.where(outcome, (positive + 1) / (positive + 2), 1 / (negative + 2))
    model.fit(np.vstack([design, design]), np.repeat([1, 0], len(design)), sample_weight=np.r_[share, 1 - share])
    return model.predict_proba(unseen)[:, 1], model.coef_[0]


class LogOdds(LogisticRegression):
    """A classifier whose scores are the log-odds of given logits."""

    def fit(self, logits, targets):
        self.classes_ = np.unique(targets)
        self.n_features_in_ = logits.shape[1]
        return self

    def decision_function(self, logits):
        odds = log_odds(logits)
        return odds[:, 1] if len(self.classes_) == 2 else odds


@pytest.mark.parametrize(("classes", "samples"), SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_platt_scaling_is_scikit_learns(classes, samples, seed):
    logits, targets = drawn_predictions(seed, samples, classes, 2)
    unseen, _ = drawn_predictions(seed + 100, 200, classes, 2)
    oracle = CalibratedClassifierCV(FrozenEstimator(LogOdds().fit(logits, targets)), method="sigmoid", ensemble=False)
    expected = oracle.fit(logits, targets).predict_proba(unseen)
    np.testing.assert_allclose(fit("platt", logits, targets)(unseen), expected, atol=2e-5)


def beta_by_loop(odds, outcome, unseen):
    """The paper's procedure: leave out a feature whose weight is negative and fit again."""
    log_p, log_rest = -np.log1p(np.exp(-odds)), -np.log1p(np.exp(odds))
    new = np.stack([np.ones_like(unseen), -np.log1p(np.exp(-unseen)), np.log1p(np.exp(unseen))], axis=1)
    design = np.stack([np.ones_like(odds), log_p, -log_rest], axis=1)
    kept = regression(design, outcome, new)[1] > np.array([-np.inf, 0, 0])
    return regression(design[:, kept], outcome, new[:, kept])[0], kept.all()


@pytest.mark.parametrize(("classes", "samples"), SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_beta_calibration_is_the_papers_procedure(classes, samples, seed):
    logits, targets = drawn_predictions(seed, samples, classes, 2)
    unseen, _ = drawn_predictions(seed + 100, 200, classes, 2)
    columns = [beta_by_loop(log_odds(logits)[:, k], targets == k, log_odds(unseen)[:, k])[0] for k in range(classes)]
    np.testing.assert_allclose(fit("beta", logits, targets)(unseen), normalised(columns), atol=1e-6)


def test_beta_calibration_leaves_out_a_negative_weight():
    """Outcomes with log-odds −log p − log(1 − p) − 2: the first weight would be −1."""
    rng = np.random.default_rng(0)
    logits = np.stack([np.zeros(2000), rng.normal(size=2000) * 3], axis=1)
    p = softmax64(logits)[:, 1]
    targets = (rng.random(2000) < 1 / (1 + np.exp(np.log(p) + np.log(1 - p) + 2))).astype(int)
    expected, unconstrained = beta_by_loop(logits[:, 1], targets == 1, logits[:, 1])
    fitted = fit("beta", logits, targets)
    assert not unconstrained and fitted.weights[0][1] == 0
    np.testing.assert_allclose(fitted(logits)[:, 1], expected, atol=1e-6)


@pytest.mark.parametrize("name", ["beta", "platt"])
@pytest.mark.parametrize("seed", range(2))
def test_two_classes_are_netcals(name, seed):
    scaling = pytest.importorskip("netcal.scaling")
    logits, targets = drawn_predictions(seed, 4000, 2, 2)
    oracle = {"beta": scaling.BetaCalibration, "platt": scaling.LogisticCalibration}[name]()
    p = softmax64(logits)[:, 1]
    oracle.fit(p, targets)
    # netcal has no pseudo-counts, which shift Platt's probabilities by about 1/N, and stops early.
    np.testing.assert_allclose(fit(name, logits, targets)(logits)[:, 1], oracle.transform(p).ravel(), atol=2e-3)


def truncated_powers(odds, knots):
    """The natural cubic spline basis of Hastie, Tibshirani & Friedman 2009, Eqs. 5.4 and 5.5."""

    def cubes(k):
        last = np.maximum(odds - knots[-1], 0) ** 3
        return (np.maximum(odds - knots[k], 0) ** 3 - last) / (knots[-1] - knots[k])

    bent = [cubes(k) - cubes(len(knots) - 2) for k in range(len(knots) - 2)]
    return np.stack([np.ones_like(odds), odds, *bent], axis=1)


@pytest.mark.parametrize(("classes", "samples"), SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_spline_calibration_is_a_regression_on_truncated_powers(classes, samples, seed):
    logits, targets = drawn_predictions(seed, samples, classes, 2)
    unseen, _ = drawn_predictions(seed + 100, 200, classes, 4)
    odds, new, columns = log_odds(logits), log_odds(unseen), []
    for k in range(classes):
        sides = [odds[targets == k, k], odds[targets != k, k]]
        knots = np.quantile([np.quantile(side, q) for side in sides for q in np.linspace(0, 1, 101)], QUANTILES)
        designs = truncated_powers(odds[:, k], knots), truncated_powers(new[:, k], knots)
        columns.append(regression(designs[0], targets == k, designs[1])[0])
    np.testing.assert_allclose(fit("spline", logits, targets)(unseen), normalised(columns), atol=1e-5)


@pytest.mark.parametrize(("classes", "samples"), SIZES)
def test_scaling_binning_is_the_mean_of_platts_map_in_each_bin(classes, samples):
    logits, targets = drawn_predictions(0, samples, classes, 2)
    mapped, columns = fit("platt", logits, targets).mapped(softmax64(logits)), []
    for k in range(classes):
        column = np.empty(samples)
        for group in np.array_split(np.argsort(logits[:, k] - np.logaddexp.reduce(logits, axis=1)), 8):
            column[group] = mapped[group, k].mean()
        columns.append(column)
    found = fit("scaling_binning", logits, targets, bins=8, mix=False)(logits)
    np.testing.assert_allclose(found, normalised(columns), atol=1e-9)


@pytest.mark.parametrize("name", ["platt", "beta", "spline"])
def test_two_classes_in_the_other_order_give_the_same_probabilities(name):
    logits, targets = drawn_predictions(0, 500, 2, 2)
    swapped = fit(name, logits[:, ::-1], 1 - targets)(logits[:, ::-1])[:, ::-1]
    np.testing.assert_allclose(fit(name, logits, targets)(logits), swapped, atol=1e-6)


@pytest.mark.parametrize("name", ["platt", "beta", "spline"])
def test_separated_and_missing_classes_keep_their_probabilities_from_zero(name):
    logits = np.stack([np.zeros(40), np.r_[np.linspace(-3, -1, 20), np.linspace(1, 3, 20)]], axis=1)
    targets = np.repeat([0, 1], 20)
    found = fit(name, logits, targets)
    assert found.parameters["at_bound"] == 0 and found(logits)[:, 1].sum() == pytest.approx(20, abs=1e-4)
    assert 1e-4 < found(logits)[0, 1] < 0.1
    missing = fit(name, np.column_stack([logits, np.zeros(40)]), targets)
    assert missing.parameters["at_bound"] == 1 and missing(np.zeros((1, 3))).min() > 1e-3


@pytest.mark.parametrize("name", ["beta", "spline", "platt"])
def test_probabilities_that_are_all_equal_give_the_shares_of_the_classes(name):
    logits, targets = np.tile([0.0, 2.0, 0.5], (900, 1)), np.repeat([0, 1, 2], [450, 270, 180])
    np.testing.assert_allclose(fit(name, logits, targets)(logits)[0], [0.5, 0.3, 0.2], atol=2e-3)

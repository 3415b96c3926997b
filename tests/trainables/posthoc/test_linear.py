"""Affine maps against plain minimisation, multinomial logistic regression, probmetrics and torch-uncertainty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from tests.trainables.oracles import oracle
from tests.trainables.predictions import drawn_predictions
from trainables.metrics.base import log_softmax64, softmax64
from trainables.posthoc import fit


def nll(probabilities: np.ndarray, targets: np.ndarray) -> float:
    return float(-np.log(probabilities[np.arange(len(targets)), targets]).mean())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_vector_scaling_is_the_least_nll(seed: int, classes: int) -> None:
    logits, targets = drawn_predictions(seed, 300, classes, 3)

    def loss(flat: np.ndarray) -> float:
        return nll(softmax64(logits * flat[:classes] + flat[classes:]), targets)

    found = minimize(loss, np.r_[np.ones(classes), np.zeros(classes)], method="BFGS", options={"gtol": 1e-6})
    calibrator = fit("vector", logits, targets)
    expected = softmax64(logits * found.x[:classes] + found.x[classes:])
    assert nll(calibrator(logits), targets) <= found.fun + 1e-8
    np.testing.assert_allclose(calibrator(logits), expected, atol=2e-3)
    assert calibrator.parameters["converged"] == 1


AFFINE = ["vector", "matrix", "dirichlet"]


@pytest.mark.parametrize("method", AFFINE)
def test_a_class_without_a_sample_keeps_a_probability(method: str) -> None:
    """The least NLL gives it 0, and one test sample of it an infinite NLL."""
    logits, targets = drawn_predictions(0, 300, 4, 3)
    calibrator = fit(method, logits[targets < 3], targets[targets < 3])
    assert calibrator.parameters["at_bound"] == 1
    share = calibrator(logits[targets < 3])[:, 3].mean()
    assert share == pytest.approx(1 / 4 / ((targets < 3).sum() + 1), rel=1 if method == "dirichlet" else 0.05)
    assert nll(calibrator(logits)[targets == 3], targets[targets == 3]) < 12


@pytest.mark.parametrize("method", AFFINE)
@pytest.mark.parametrize("samples", [18, 120])
@pytest.mark.parametrize("groups", [False, True])
def test_separated_classes_take_smoothed_targets(method: str, samples: int, groups: bool) -> None:
    """All classes, or {0, 1} and {2, 3} where only the two within each are mistaken for each other."""
    random = np.random.default_rng(samples)
    targets = np.arange(samples) % 4
    logits = random.normal(size=(samples, 4))
    logits[np.arange(samples), targets] += 1 if groups else 12
    logits += 12 * (targets[:, None] // 2 == np.arange(4) // 2) * groups
    calibrator = fit(method, logits, targets, max_iterations=300)
    assert calibrator.parameters["at_bound"] == calibrator.parameters["converged"] == 1
    opposite = (targets + 2) % 4
    assert 2 < nll(calibrator(logits), opposite) < 25


@pytest.mark.parametrize("method", AFFINE)
@pytest.mark.parametrize(("samples", "classes", "skill"), [(60, 2, 2), (400, 5, 3), (3000, 20, 2)])
def test_a_fit_that_exists_is_not_smoothed(method: str, samples: int, classes: int, skill: float) -> None:
    logits, targets = drawn_predictions(1, samples, classes, skill)
    assert fit(method, logits, targets).parameters["at_bound"] == 0


@pytest.mark.parametrize("method", ["matrix", "dirichlet"])
@pytest.mark.parametrize("seed", range(3))
def test_without_penalties_it_is_multinomial_logistic_regression(method: str, seed: int) -> None:
    from sklearn.linear_model import LogisticRegression

    logits, targets = drawn_predictions(seed, 2000, 3, 2)
    features = logits.astype(np.float64) if method == "matrix" else log_softmax64(logits)
    regression = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(features, targets)
    found = fit(method, logits, targets, off_diagonal=0.0, intercept=0.0, max_iterations=500)
    np.testing.assert_allclose(found(logits), regression.predict_proba(features), atol=3e-4)
    assert nll(found(logits), targets) == pytest.approx(nll(regression.predict_proba(features), targets), abs=1e-7)


@pytest.mark.parametrize(("off_diagonal", "intercept"), [(0.0, 0.0), (0.3, 2.0), (50.0, 0.01)])
@pytest.mark.parametrize("method", ["matrix", "dirichlet"])
def test_penalties_are_those_of_odir(method: str, off_diagonal: float, intercept: float) -> None:
    logits, targets = drawn_predictions(1, 400, 3, 2)
    features = logits.astype(np.float64) if method == "matrix" else log_softmax64(logits)

    def loss(flat: np.ndarray) -> float:
        weights, bias = flat[:9].reshape(3, 3), flat[9:]
        outside = sum(weights[i, j] ** 2 for i in range(3) for j in range(3) if i != j)
        penalty = off_diagonal * outside / 6 + intercept * (bias**2).sum() / 3
        return nll(softmax64(features @ weights.T + bias), targets) + penalty

    expected = minimize(loss, np.r_[np.eye(3).ravel() / 2, np.zeros(3)], method="BFGS", options={"gtol": 1e-6}).x
    found = fit(method, logits, targets, off_diagonal=off_diagonal, intercept=intercept, max_iterations=500)
    probabilities = softmax64(features @ expected[:9].reshape(3, 3).T + expected[9:])
    np.testing.assert_allclose(found(logits), probabilities, atol=2e-3)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("samples", "classes"), [(500, 3), (2000, 10)])
def test_structured_matrix_scaling_is_probmetrics(seed: int, samples: int, classes: int) -> None:
    """It works on probabilities in float32, after temperature scaling mixed with 1/(n + 1) of the uniform."""
    calibrators = pytest.importorskip("probmetrics.calibrators")
    logits, targets = drawn_predictions(seed, samples, classes, 2)
    sms = calibrators.get_calibrator("sms")
    probabilities = softmax64(logits)
    sms.fit(probabilities, targets)
    found = fit("structured_matrix", logits, targets)(logits)
    expected = sms.predict_proba(probabilities)
    assert np.abs(found - expected).max() < 0.02
    assert nll(found, targets) == pytest.approx(nll(expected, targets), abs=2e-4)


@pytest.mark.parametrize("seed", range(3))
def test_dirichlet_calibration_is_torch_uncertaintys(seed: int) -> None:
    post = oracle("torch_uncertainty.post_processing.calibration.dirichlet_scaler")
    logits, targets = drawn_predictions(seed, 600, 4, 2)
    data = torch.utils.data.TensorDataset(torch.from_numpy(logits), torch.from_numpy(targets))
    scaler = post.DirichletScaler(num_classes=4, model=torch.nn.Identity(), lambda_reg=0.5, mu_reg=0.2, max_iter=2000)
    scaler.fit(torch.utils.data.DataLoader(data, batch_size=600), progress=False)
    expected = scaler._scale(torch.from_numpy(logits)).softmax(1).detach().numpy()
    found = fit("dirichlet", logits, targets, off_diagonal=0.5, intercept=0.2, max_iterations=500)(logits)
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_strong_penalties_leave_temperature_scaling() -> None:
    logits, targets = drawn_predictions(4, 500, 4, 3)
    held = fit("structured_matrix", logits, targets, strength=1e6)
    np.testing.assert_allclose(held(logits), fit("temperature", logits, targets)(logits), atol=1e-3)
    plain = fit("temperature", logits, targets).parameters
    assert held.parameters["temperature"] == pytest.approx(plain["temperature"])


def test_separable_samples_end_at_the_limit_of_iterations_or_at_no_loss() -> None:
    targets = np.arange(60) % 3
    for name in ("vector", "matrix", "dirichlet", "structured_matrix"):
        probabilities = fit(name, np.eye(3)[targets] * 4, targets)(np.eye(3)[targets] * 4)
        assert np.isfinite(probabilities).all() and nll(probabilities, targets) < 0.05

import numpy as np
import pytest

from tests.trainables.posthoc.focal_risk import focal_risk_minimiser
from tests.trainables.posthoc.known_posterior_problem import density_on_grid, draw, measure, posterior
from trainables.metrics import evaluate_probabilities
from trainables.metrics.base import UnusablePredictions, softmax64
from trainables.metrics.known_posterior import posterior_metrics
from trainables.posthoc.focal_map import focal_map


def expected_kl(weights, eta, q):
    return float(weights @ (eta * np.log(eta / q)).sum(1))


def best_temperature(weights, eta, q):
    """Population temperature scaling: T with least cross-entropy to η, by golden section in ln T."""
    low, high, ratio = -3.0, 3.0, (5**0.5 - 1) / 2
    for _ in range(80):
        first, second = high - ratio * (high - low), low + ratio * (high - low)
        values = [expected_kl(weights, eta, softmax64(np.log(q) / np.exp(t))) for t in (first, second)]
        low, high = (low, second) if values[0] < values[1] else (first, high)
    return np.exp((low + high) / 2)


@pytest.mark.parametrize(("gamma", "raw", "scaled"), [(1.0, 0.031, 0.0060), (5.0, 0.174, 0.0202)])
def test_population_values(gamma, raw, scaled):
    points, weights = density_on_grid(points=401)
    eta = posterior(points)
    assert round(float(weights @ (1 - eta.max(1))), 4) == 0.2115
    q = focal_risk_minimiser(eta, gamma)
    assert round(expected_kl(weights, eta, q), 3) == raw
    temperature = best_temperature(weights, eta, q)
    assert round(expected_kl(weights, eta, softmax64(np.log(q) / temperature)), 4) == scaled
    assert expected_kl(weights, eta, focal_map(q, gamma)) == pytest.approx(0.0, abs=1e-9)


def test_posterior_metrics_of_simple_cases():
    eta = np.array([[0.8, 0.2], [0.6, 0.4]] * 50)
    assert posterior_metrics(eta, eta, bins=2) == pytest.approx(
        {"kl_to_posterior": 0.0, "true_calibration_error": 0.0, "confidence_to_posterior_distance": 0.0}
    )
    blurred = np.full((100, 2), [0.7, 0.3])
    found = posterior_metrics(eta, blurred, bins=1)
    assert found["true_calibration_error"] == pytest.approx(0.0, abs=1e-12)
    assert found["confidence_to_posterior_distance"] == pytest.approx(0.1)
    assert found["kl_to_posterior"] == pytest.approx(
        np.mean([0.8 * np.log(8 / 7) + 0.2 * np.log(2 / 3), 0.6 * np.log(6 / 7) + 0.4 * np.log(4 / 3)])
    )
    certain, wrong = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert posterior_metrics(certain, certain)["kl_to_posterior"] == 0.0
    assert 700 < posterior_metrics(wrong, certain)["kl_to_posterior"] < 710


def test_true_calibration_error_is_what_ece_estimates_from_labels():
    points, targets = draw(200_000, seed=0)
    eta = posterior(points)
    q = softmax64(np.log(eta) * 1.5)
    found = posterior_metrics(eta, q)
    error = found["true_calibration_error"]
    assert error == pytest.approx(evaluate_probabilities(q, targets, 100)["ada_ece"], abs=2e-3)
    assert error <= found["confidence_to_posterior_distance"]


def test_unusable_posteriors_are_refused():
    with pytest.raises(UnusablePredictions, match="must match probabilities of shape"):
        posterior_metrics(np.full((3, 2), 0.5), np.full((2, 2), 0.5))
    with pytest.raises(UnusablePredictions, match=r"sum to 1\.2"):
        posterior_metrics(np.full((3, 2), 0.6), np.full((3, 2), 0.5))


@pytest.mark.slow
def test_focal_map_recovers_the_posterior_where_temperature_scaling_cannot():
    """Posterior §5.2 at γ = 5: the map leaves at most half of temperature scaling's KL and little beyond CE's."""
    focal = [measure(5.0, seed) for seed in range(5)]
    plain = [measure(0.0, seed) for seed in range(5)]

    def mean(runs, method):
        return np.mean([run[method]["kl_to_posterior"] for run in runs])

    assert mean(focal, "focal_map") <= mean(focal, "temperature") / 2
    assert mean(focal, "focal_map") <= 2 * mean(plain, "raw") + 0.002
    calibration = {m: np.mean([run[m]["true_calibration_error"] for run in focal]) for m in focal[0] if m != "error"}
    assert calibration["focal_map"] < calibration["temperature"] < calibration["raw"]

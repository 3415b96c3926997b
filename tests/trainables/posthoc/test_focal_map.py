import mpmath
import numpy as np
import pytest

from tests.trainables.posthoc.focal_risk import focal_risk, focal_risk_minimiser
from trainables.metrics.base import log_softmax64
from trainables.posthoc import PosthocUnavailable, fit
from trainables.posthoc.focal_map import focal_map, focal_map_of_logits, log_complement

GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)


def exact_map(logits, gamma):
    """Posterior Eqs. 12–13 on softmax(logits), in 700 digits."""
    with mpmath.workdps(700):
        weights = [mpmath.exp(mpmath.mpf(float(z))) for z in logits]
        p = [w / sum(weights) for w in weights]
        h = [v / ((1 - v) ** gamma - gamma * (1 - v) ** (gamma - 1) * v * mpmath.log(v)) for v in p]
        return [x / sum(h) for x in h]


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("classes", [2, 10])
def test_recovers_the_posterior_from_the_focal_risks_minimiser(gamma, classes):
    random = np.random.default_rng(int(10 * gamma) + classes)
    concentrations = random.choice([0.1, 0.5, 1.0, 5.0], size=12)
    posterior = np.stack([random.dirichlet(np.full(classes, a)) for a in concentrations])
    posterior = np.maximum(posterior, 1e-9)
    posterior /= posterior.sum(1, keepdims=True)
    minimiser = focal_risk_minimiser(posterior, gamma)
    np.testing.assert_allclose(focal_map(minimiser, gamma), posterior, atol=1e-6)


def test_the_minimiser_is_one():
    random = np.random.default_rng(0)
    posterior = random.dirichlet(np.ones(4), size=5)
    minimiser = focal_risk_minimiser(posterior, 3.0)
    for _ in range(50):
        step = random.normal(size=posterior.shape) * 1e-3 * minimiser
        other = minimiser + step - step.mean(1, keepdims=True) * (minimiser / minimiser.mean(1, keepdims=True))
        other /= other.sum(1, keepdims=True)
        assert (focal_risk(posterior, other, 3.0) >= focal_risk(posterior, minimiser, 3.0)).all()


@pytest.mark.parametrize("gamma", [-1.0, -0.995, -0.5, 0.05, 0.37, 1.0, 3.0, 20.0])
def test_agrees_with_many_digits_also_at_the_ends(gamma):
    rows = np.array([[0.3, -1.0, 2.0], [30.0, 0.0, -3.0], [700.0, 0.0, 1.0], [0.0, 0.0, -40.0], [9.0, 9.5, 9.4]])
    for row, found in zip(rows, focal_map_of_logits(rows, gamma), strict=True):
        expected = [float(x) for x in exact_map(row, gamma)]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-290)


def test_ties_stay_ties_and_one_hot_rows_stay():
    for gamma in (-1.0, -0.5, 0.0, 1.0, 5.0):
        tied = focal_map(np.array([[0.4, 0.4, 0.2], [0.25, 0.25, 0.5], [1 / 3, 1 / 3, 1 / 3]]), gamma)
        assert tied[0, 0] == pytest.approx(tied[0, 1], rel=1e-14)
        assert tied[1, 0] == pytest.approx(tied[1, 1], rel=1e-14)
        np.testing.assert_allclose(tied[2], 1 / 3, rtol=1e-14)
        one_hot = np.eye(3)[[2, 0]]
        assert focal_map(one_hot, gamma).tolist() == one_hot.tolist()


def test_the_map_may_lower_the_top_confidence_of_many_classes():
    """Properness Prop. 5 says it never does; posterior Thm. 8 that it does below τ_oc."""
    p = np.full((1, 1000), 0.99 / 999)
    p[0, 0] = 0.01
    assert round(float(focal_map(p, 3.0)[0, 0]), 4) == 0.0092


@pytest.mark.parametrize("gamma", [-1.01, float("nan"), float("inf")])
def test_gammas_outside_the_range_are_refused(gamma):
    with pytest.raises(PosthocUnavailable, match=r"gamma = .* outside \[-1, inf\)"):
        focal_map(np.array([[0.5, 0.5]]), gamma)
    with pytest.raises(ValueError, match="gamma"):
        fit("focal_map", 2 * np.eye(2), [0, 1], gamma=gamma)


def test_without_a_gamma_the_remedy_is_named():
    with pytest.raises(PosthocUnavailable, match="give posthoc focal_map a gamma"):
        fit("focal_map", 2 * np.eye(2), [0, 1])


def test_log_complement_is_exact_where_probabilities_round_to_one():
    found = log_complement(log_softmax64(np.array([[100.0, 0.0, -1.0]])))
    assert found[0, 0] == pytest.approx(-100 + np.log(1 + np.exp(-1.0)), rel=1e-12)
    assert found[0, 1] == pytest.approx(-np.exp(-100.0), rel=1e-12)

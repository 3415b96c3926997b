import mpmath
import numpy as np
import pytest

from tests.trainables.posthoc.focal_risk import focal_risk_minimiser
from trainables.posthoc import PosthocUnavailable
from trainables.posthoc.confidence_regions import (
    binary_focal_bounds,
    binary_focal_map,
    over_confident,
    region_shares,
    region_thresholds,
)
from trainables.posthoc.focal_map import focal_map


@pytest.mark.parametrize(("gamma", "over", "under"), [(1, 0.1353, 0.3679), (3, 0.0855, 0.2526)])
def test_published_thresholds(gamma, over, under):
    thresholds = region_thresholds(gamma)
    assert round(thresholds.over_confident, 4) == over
    assert round(thresholds.under_confident, 4) == under


def test_thresholds_at_gamma_one_are_powers_of_e():
    thresholds = region_thresholds(1.0)
    assert thresholds.over_confident == pytest.approx(np.exp(-2), rel=1e-12)
    assert thresholds.under_confident == pytest.approx(np.exp(-1), rel=1e-12)


@pytest.mark.parametrize("gamma", [1e-6, 0.1, 2.0, 7.5, 50.0, 1e4])
def test_thresholds_maximise_phi_and_bring_it_back_to_one(gamma):
    thresholds = region_thresholds(gamma)
    assert 0 < thresholds.over_confident < thresholds.under_confident < 0.5

    with mpmath.workdps(40):

        def phi(v):
            v = mpmath.mpf(v)
            return (1 - v) ** gamma - gamma * (1 - v) ** (gamma - 1) * v * mpmath.log(v)

        top = phi(thresholds.over_confident)
        assert all(phi(thresholds.over_confident * factor) <= top for factor in (0.999, 1.001))
        assert float((phi(thresholds.under_confident) - 1) / gamma) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 3.0, 5.0])
def test_regions_agree_with_the_focal_risks_minimiser(gamma):
    random = np.random.default_rng(0)
    posterior = np.concatenate([random.dirichlet(np.full(30, a), size=15) for a in (0.1, 1.0, 5.0, 50.0)])
    minimiser = focal_risk_minimiser(posterior, gamma)
    over = minimiser.max(1) > posterior.max(1)
    assert over.any()
    assert not over.all()
    np.testing.assert_array_equal(over_confident(minimiser, gamma), over)


def test_shares_add_up():
    p = np.random.default_rng(0).dirichlet(np.full(30, 0.7), size=500)
    shares = region_shares(p, 3.0)
    assert shares["below_tau_oc"] + shares["ambiguous"] + shares["above_tau_uc"] == pytest.approx(1.0)
    assert shares["over_confident"] + shares["under_confident"] == pytest.approx(1.0)
    assert shares["below_tau_oc"] <= shares["over_confident"]
    assert shares["above_tau_uc"] <= shares["under_confident"]
    raised = focal_map(p, 3.0).max(1) > p.max(1)
    assert shares["under_confident"] == pytest.approx(raised.mean(), abs=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.01, 0.5, 1.0, 2.0, 4.0, 10.0, 100.0])
def test_binary_bound_on_a_fine_grid(gamma):
    margins = np.linspace(-40, 40, 80_001)
    lower, upper = binary_focal_bounds(margins, gamma)
    mapped = binary_focal_map(margins, gamma)
    assert (mapped >= lower - 1e-15).all()
    assert (mapped <= upper + 1e-15).all()


def test_binary_map_is_the_map_of_two_classes():
    margins = np.linspace(-30, 30, 301)
    first = np.exp(-np.logaddexp(0, -margins))
    both = np.stack([first, np.exp(-np.logaddexp(0, margins))], axis=1)
    np.testing.assert_allclose(binary_focal_map(margins, 3.0), focal_map(both, 3.0)[:, 0], rtol=1e-12)


def test_refused_gammas():
    with pytest.raises(PosthocUnavailable, match="gamma = 0 must be above 0"):
        region_thresholds(0.0)
    with pytest.raises(PosthocUnavailable, match="gamma = -1 must be at least 0"):
        binary_focal_bounds(np.zeros(2), -1.0)

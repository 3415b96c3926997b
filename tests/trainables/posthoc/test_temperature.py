import numpy as np
import pytest
import torch

from tests.trainables.reference_metrics import width_error
from trainables.metrics import softmax64
from trainables.posthoc import fit
from trainables.posthoc.focal_map import focal_map
from trainables.posthoc.temperature import (
    BOUND_RATIO,
    TEMPERATURE_GRIDS,
    first_smallest,
    focal_value,
    logit_scale,
    temperature_by_nll,
)


def logits_and_targets(seed, samples=200, classes=6, scale=3.0):
    random = np.random.default_rng(seed)
    targets = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes))
    logits[np.arange(samples), targets] += 1.0
    return logits * scale, targets


def optimum_by_bisection(logits, targets):
    """T where the autograd slope of torch's own cross-entropy vanishes."""
    z, y = torch.as_tensor(logits), torch.as_tensor(targets)
    low, high = -12.0, 12.0
    for _ in range(80):
        middle = torch.tensor((low + high) / 2, dtype=torch.float64, requires_grad=True)
        torch.nn.functional.cross_entropy(z * torch.exp(-middle), y).backward()
        low, high = (float(middle.detach()), high) if middle.grad < 0 else (low, float(middle.detach()))
    return float(np.exp((low + high) / 2))


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("seed", range(6))
def test_nll_reaches_the_optimum_at_any_scale(seed, factor):
    logits, targets = logits_and_targets(seed, scale=(0.3, 3.0, 20.0)[seed % 3])
    found = fit("temperature", logits * factor, targets).parameters
    expected = optimum_by_bisection(logits, targets) * factor
    assert found["temperature"] == pytest.approx(expected, rel=1e-6)
    assert (found["converged"], found["at_bound"]) == (1.0, 0.0)


@pytest.mark.parametrize("objective", ["nll", "focal"])
@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_perfectly_separated_data_take_the_temperature_of_smoothed_targets(factor, objective):
    """The NLL falls all the way to T → 0: one pseudo-count for all classes together gives it a minimum (Platt 1999)."""
    logits, targets = logits_and_targets(0, scale=1.0)
    logits[np.arange(len(targets)), targets] += 10.0
    gamma = 2.0 if objective == "focal" else 0.0
    calibrator = fit("temperature", logits * factor, targets, objective=objective, gamma=gamma)
    samples, classes = logits.shape
    smooth = np.full(logits.shape, 1 / (samples + 1) / classes)
    smooth[np.arange(samples), targets] += samples / (samples + 1)

    def value(temperature):
        p = softmax64(logits / temperature)
        return -(smooth * (1 - p) ** gamma * np.log(np.maximum(p, 1e-300))).sum(axis=1).mean()

    assert calibrator.parameters["at_bound"] == 1.0
    temperatures = np.exp(np.linspace(-4, 4, 4001))
    best = temperatures[np.argmin([value(t) for t in temperatures])]
    assert calibrator.parameters["temperature"] / factor == pytest.approx(best, rel=3e-3)
    new = softmax64(-logits * factor / calibrator.parameters["temperature"])  # every prediction is wrong
    assert -np.log(new[np.arange(samples), targets]).mean() < 40


def test_a_grid_of_temperatures_takes_smoothed_targets_at_its_end():
    logits, targets = logits_and_targets(0, scale=1.0)
    logits[np.arange(len(targets)), targets] += 10.0
    found = fit("temperature", logits, targets, objective="nll_on_grid").parameters
    exact = fit("temperature", logits, targets).parameters["temperature"]
    assert found["at_bound"] == 1.0 and abs(found["temperature"] - exact) <= 0.1


def test_logits_that_point_the_wrong_way_end_at_the_other_bound():
    logits, targets = logits_and_targets(0)
    logits[np.arange(len(targets)), targets] -= 100.0
    found = fit("temperature", logits, targets).parameters
    assert found["at_bound"] == 1.0
    assert found["temperature"] == pytest.approx(logit_scale(logits) * BOUND_RATIO)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0, 5.0])
def test_focal_objective_is_the_lowest_of_a_fine_grid(gamma):
    for seed in range(2):
        logits, targets = logits_and_targets(seed)
        found = fit("temperature", logits, targets, objective="focal", gamma=gamma).parameters
        assert found["at_bound"] == 0.0

        def loss(temperature, logits=logits, targets=targets):
            p = softmax64(logits / temperature)[np.arange(len(targets)), targets]
            return -((1 - p) ** gamma * np.log(p)).mean()

        assert focal_value(logits, targets, 2.0, gamma) == pytest.approx(loss(2.0), rel=1e-9)
        assert loss(found["temperature"]) <= min(map(loss, np.exp(np.linspace(-7, 8, 1500)))) + 1e-12


def test_focal_objective_then_the_map():
    logits, targets = logits_and_targets(1)
    options = {"objective": "focal", "gamma": 2.0}
    scaled = fit("temperature", logits, targets, **options)
    mapped = fit("temperature", logits, targets, apply_focal_map=True, **options)
    assert mapped.parameters == scaled.parameters
    np.testing.assert_allclose(mapped(logits), focal_map(scaled(logits), 2.0), rtol=1e-9)


def test_grid_values_are_whole_tenths_and_hundredths():
    assert TEMPERATURE_GRIDS["mukhoti"].tolist() == [i / 10 for i in range(1, 101)]
    assert TEMPERATURE_GRIDS["properness"].tolist() == [i / 100 for i in range(1, 501)]


@pytest.mark.parametrize("seed", range(3))
def test_ece_objective_takes_the_smallest_temperature_of_the_least_error(seed):
    logits, targets = logits_and_targets(seed, samples=60)
    found = fit("temperature", logits, targets, objective="ece", bins=10).parameters["temperature"]
    right = (logits.argmax(1) == targets).astype(float)
    errors = {t: width_error(softmax64(logits / t).max(1), right, 10) for t in TEMPERATURE_GRIDS["mukhoti"]}
    least = min(errors.values())
    assert found == next(t for t, error in errors.items() if error <= least + 1e-12)


def test_ties_go_to_the_smallest_temperature_in_spite_of_rounding():
    assert first_smallest(np.array([0.3, 0.1 + 1e-16, 0.1, 0.2])) == 1
    logits = np.array([[50.0, 0.0], [0.0, 50.0]] * 10)
    targets = np.array([0, 1] * 10)
    found = fit("temperature", logits, targets, objective="ece").parameters
    assert (found["temperature"], found["at_bound"]) == (0.1, 1.0)


def test_all_right_and_all_wrong_are_at_their_bounds() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 40, 3))
    right = temperature_by_nll(logits[0], logits[0].argmax(axis=1))
    wrong = temperature_by_nll(logits[1], logits[1].argmin(axis=1))
    assert right["at_bound"] == wrong["at_bound"] == 1 and right["temperature"] < 1 < wrong["temperature"]
    assert temperature_by_nll(np.zeros((4, 3)), np.array([0, 1, 2, 0]))["converged"] == 1, "no T is the best"

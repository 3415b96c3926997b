import numpy as np
import pytest

from tests.trainables.posthoc.reference_grid import double_loop
from trainables.metrics import evaluate_probabilities
from trainables.posthoc import fit
from trainables.posthoc.focal_map import focal_map_of_logits
from trainables.posthoc.focal_temperature import GAMMAS, best_temperatures, focal_grid, full_grid_search, line_search
from trainables.posthoc.temperature import TEMPERATURE_GRIDS, first_smallest

TEMPERATURES = TEMPERATURE_GRIDS["properness"]


def logits_and_targets(seed, samples=40, classes=5, scale=2.0):
    random = np.random.default_rng(seed)
    targets = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes)) * scale
    logits[np.arange(samples), targets] += 2.0
    return logits.astype(np.float32), targets


@pytest.mark.parametrize(("classes", "scale"), [(2, 2.0), (5, 0.3), (5, 8.0), (30, 2.0)])
def test_grid_agrees_with_the_double_loop(classes, scale):
    logits, targets = logits_and_targets(classes, classes=classes, scale=scale)
    temperatures = np.concatenate([TEMPERATURES[40:100:20], TEMPERATURES[100::4]])
    found = focal_grid(logits, targets, np.array(GAMMAS), temperatures)
    ece, nll = double_loop(logits, targets, GAMMAS, temperatures)
    # where logits spread over more than 10 nats, 1 − p in the double loop has lost its digits
    plain = temperatures > np.ptp(logits, axis=1).max() / 10
    assert plain.any()
    np.testing.assert_allclose(found.nll[:, plain], nll[:, plain], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.ada_ece, ece, atol=1e-10)


@pytest.mark.parametrize("kind", ["normal", "heavy", "tied"])
def test_every_cell_is_what_the_calibrator_of_that_cell_gives(kind):
    random = np.random.default_rng(7)
    logits, targets = logits_and_targets(3, samples=60)
    if kind == "heavy":
        logits = random.standard_t(2, size=logits.shape) * 3
    if kind == "tied":
        logits = np.round(logits)
    found = focal_grid(logits, targets, np.array(GAMMAS), TEMPERATURES)
    for _ in range(60):
        g, t = random.integers(len(GAMMAS)), random.integers(len(TEMPERATURES))
        cell = focal_map_of_logits(logits.astype(np.float64) / TEMPERATURES[t], GAMMAS[g])
        expected = evaluate_probabilities(cell, targets)
        if kind != "tied":  # how a tie across bins falls depends on the last bit of each confidence
            assert found.ada_ece[g, t] == pytest.approx(expected["ada_ece"], abs=1e-10)
        if expected["nll"] < 5:
            assert found.nll[g, t] == pytest.approx(expected["nll"], abs=1e-10)


@pytest.mark.parametrize("objective", ["ada_ece", "nll"])
def test_both_searches_are_reported_and_the_chosen_one_applied(objective):
    logits, targets = logits_and_targets(4, samples=120)
    on_grid = fit("focal_temperature", logits, targets, objective=objective, search="grid")
    on_line = fit("focal_temperature", logits, targets, objective=objective, search="line")
    for calibrator, kind in ((on_grid, "grid"), (on_line, "line")):
        found = calibrator.parameters
        assert (found["gamma"], found["temperature"]) == (found[f"{kind}_gamma"], found[f"{kind}_temperature"])
        measured = evaluate_probabilities(calibrator(logits), targets)[objective]
        assert measured == pytest.approx(found["value"], abs=1e-10)
    shared = [name for name in on_grid.parameters if name.startswith(("grid", "line"))]
    assert [on_grid.parameters[n] for n in shared] == [on_line.parameters[n] for n in shared]


def test_full_search_takes_the_least_cell():
    logits, targets = logits_and_targets(5, samples=60)
    best, grid = full_grid_search(logits, targets, "nll")
    assert best.value == grid.nll.min()
    g, t = np.unravel_index(grid.nll.argmin(), grid.nll.shape)
    assert (best.gamma, best.temperature) == (GAMMAS[g], TEMPERATURES[t])
    by_gamma = best_temperatures(grid, "nll")
    assert [cell.gamma for cell in by_gamma] == list(GAMMAS)
    assert [cell.value for cell in by_gamma] == pytest.approx(grid.nll.min(axis=1))


def test_line_search_walks_the_line_through_the_two_best_temperatures():
    logits, targets = logits_and_targets(6, samples=60)
    few = TEMPERATURES[9::20]
    best, line = line_search(logits, targets, "nll", temperatures=few)
    _, nll = double_loop(logits, targets, (0.0, 1.0), few)
    at_zero, at_one = (few[first_smallest(row)] for row in nll)
    assert (line.intercept, line.intercept + line.slope) == pytest.approx((at_zero, at_one))
    gammas = np.linspace(-0.5, 5.0, len(few))
    cells = [(g, at_zero + (at_one - at_zero) * g) for g in gammas]
    values = [double_loop(logits, targets, (g,), (t,))[1][0, 0] for g, t in cells if t > 0]
    assert best.value == pytest.approx(min(values), abs=1e-10)
    assert best.temperature == pytest.approx(line.intercept + line.slope * best.gamma)


def test_a_line_that_reaches_zero_drops_those_temperatures(monkeypatch):
    logits, targets = logits_and_targets(6, samples=60)
    answers = iter([np.array([0.1, 0.2, 0.3]), np.array([0.3, 0.2, 0.1])])

    def descending(*arguments, **options):
        grid = focal_grid(*arguments, **options)
        if grid.gammas.shape[0] == 2:
            grid.nll[0], grid.nll[1] = next(answers)[::-1], next(answers)[::-1]
        return grid

    monkeypatch.setattr("trainables.posthoc.focal_temperature.focal_grid", descending)
    best, line = line_search(logits, targets, "nll", temperatures=np.array([0.5, 1.0, 2.0]))
    assert line.slope == -1.5
    assert best.temperature == 2.0 + 1.5 * 0.5


@pytest.mark.parametrize("search", ["grid", "line"])
def test_gamma_by_one_objective_and_temperature_by_another(search):
    """properness Table 1: one γ a row for both columns; below it T by log-loss."""
    logits, targets = logits_and_targets(0, samples=120)
    by_ece = fit("focal_temperature", logits, targets, search=search).parameters
    mixed = fit("focal_temperature", logits, targets, search=search, objective="nll", gamma_objective="ada_ece")
    assert mixed.parameters["gamma"] == by_ece["gamma"]
    values = focal_grid(logits, targets, np.array([by_ece["gamma"]]), TEMPERATURES).nll[0]
    assert mixed.parameters["temperature"] == TEMPERATURES[first_smallest(values)]
    assert mixed.parameters["value"] == pytest.approx(values.min())
    same = fit("focal_temperature", logits, targets, search=search, gamma_objective="ada_ece").parameters
    assert same == by_ece


@pytest.mark.parametrize("objective", ["ada_ece", "nll"])
def test_an_end_of_the_temperatures_is_flagged(objective):
    targets = np.arange(60) % 3
    logits = 8.0 * np.eye(3)[targets] + np.random.default_rng(0).normal(size=(60, 3))
    assert fit("focal_temperature", logits, targets, objective=objective).parameters["at_bound"] == 1
    mixed = np.where(np.arange(60) % 4 == 0, (targets + 1) % 3, targets)
    assert fit("focal_temperature", logits, mixed, objective=objective).parameters["at_bound"] == 0

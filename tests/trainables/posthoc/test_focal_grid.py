"""The grid as tensors has the values of the grid of the processor, up to rounding, on any device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.trainables.posthoc.reference_grid import double_loop
from tests.trainables.posthoc.test_focal_temperature import logits_and_targets
from trainables.posthoc import fit
from trainables.posthoc.focal_grid import (
    equal_mass_errors,
    equal_mass_errors_of_tensors,
    focal_grid,
    grid_device,
    grids_on,
)
from trainables.posthoc.focal_temperature import GAMMAS
from trainables.posthoc.temperature import TEMPERATURE_GRIDS

TEMPERATURES = TEMPERATURE_GRIDS["properness"]
CPU = torch.device("cpu")


def _same(found, expected):
    """1e-11 of the value, a hundredth of what separates two temperatures' objectives."""
    np.testing.assert_allclose(found.nll, expected.nll, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(found.ada_ece, expected.ada_ece, atol=1e-11)


@pytest.mark.parametrize(
    ("classes", "scale", "samples"), [(2, 2.0, 40), (5, 0.3, 61), (5, 8.0, 40), (10, 40.0, 90), (100, 2.0, 200)]
)
def test_the_whole_grid_is_that_of_the_processor(classes, scale, samples):
    logits, targets = logits_and_targets(classes, samples, classes, scale)
    expected = focal_grid(logits, targets, np.array(GAMMAS), TEMPERATURES)
    _same(focal_grid(logits, targets, np.array(GAMMAS), TEMPERATURES, device=CPU), expected)


def test_so_is_one_whose_gammas_follow_the_temperature_and_one_in_small_blocks(monkeypatch):
    logits, targets = logits_and_targets(3, 70, 4)
    gammas = np.linspace(-0.5, 5, 60)[None, :]
    expected = focal_grid(logits, targets, gammas, TEMPERATURES[::8][:60])
    _same(focal_grid(logits, targets, gammas, TEMPERATURES[::8][:60], device=CPU), expected)
    for module in ("focal_grid", "focal_masses"):
        monkeypatch.setattr(f"trainables.posthoc.{module}.BLOCK_BYTES", 5000)
    _same(focal_grid(logits, targets, gammas, TEMPERATURES[::8][:60], device=CPU), expected)


def test_samples_that_do_not_converge_are_computed_directly(monkeypatch):
    logits, targets = logits_and_targets(0)
    expected = focal_grid(logits, targets, np.array(GAMMAS), TEMPERATURES)
    for tolerance in (1e-15, -1.0):  # some samples, then all
        monkeypatch.setattr("trainables.posthoc.focal_grid.TOLERANCE", tolerance)
        _same(focal_grid(logits, targets, np.array(GAMMAS), TEMPERATURES, device=CPU), expected)


def test_it_agrees_with_the_double_loop():
    logits, targets = logits_and_targets(5, classes=5)
    temperatures = TEMPERATURES[100::40]
    found = focal_grid(logits, targets, np.array(GAMMAS), temperatures, device=CPU)
    ece, nll = double_loop(logits, targets, GAMMAS, temperatures)
    np.testing.assert_allclose(found.nll, nll, rtol=1e-10)
    np.testing.assert_allclose(found.ada_ece, ece, atol=1e-10)


def test_all_right_and_equal_confidences_are_no_special_case():
    logits = np.repeat(np.array([[3.0, 1.0, 0.0]]), 30, axis=0)
    for targets in (np.zeros(30, dtype=np.int64), np.arange(30) % 3):
        expected = focal_grid(logits, targets, np.array(GAMMAS), TEMPERATURES)
        found = focal_grid(logits, targets, np.array(GAMMAS), TEMPERATURES, device=CPU)
        np.testing.assert_allclose(found.nll, expected.nll, rtol=1e-11, atol=1e-11)
    random = np.random.default_rng(0)
    confidence, correct = random.integers(0, 4, (2, 3, 50)) / 4, (random.random(50) < 0.5).astype(float)
    found = equal_mass_errors_of_tensors(torch.as_tensor(confidence), torch.as_tensor(correct), 7)
    np.testing.assert_allclose(found.numpy(), equal_mass_errors(confidence, correct, 7), atol=1e-15)


def test_only_a_gpu_is_chosen_and_only_within_the_context(monkeypatch):
    with grids_on(CPU):
        assert grid_device() is None
    with grids_on(torch.device("cuda")):
        assert grid_device() == torch.device("cuda")
        with grids_on(CPU):
            assert grid_device() is None
    assert grid_device() is None
    logits, targets = logits_and_targets(4, samples=120)
    expected = fit("focal_temperature", logits, targets).parameters
    monkeypatch.setattr("trainables.posthoc.focal_grid.grid_device", lambda: CPU)
    assert fit("focal_temperature", logits, targets).parameters == pytest.approx(expected, rel=1e-9)

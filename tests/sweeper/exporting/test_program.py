"""Post-hoc methods in torch equal their calibrators in numpy, also at the ends of the numbers' range."""

import numpy as np
import pytest
import torch

from sweeper.exporting.program import layer_of
from trainables.posthoc import POSTHOC, fit
from trainables.posthoc.focal_map import FocalTemperatureCalibrator, focal_map_of_logits, focal_temperature_layer

RNG = np.random.default_rng(0)
TARGETS = RNG.integers(0, 5, 400)
LOGITS = 3.0 * RNG.normal(size=(400, 5)) + 4.0 * np.eye(5)[TARGETS]
LAYERS = [method.name for method in POSTHOC.built_in() if method.layer]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((name, {"gamma": 3.0} if name == "focal_map" else {}) for name in LAYERS),
        ("temperature", {"objective": "focal", "gamma": 2.0, "apply_focal_map": True}),
        ("focal_map", {"gamma": -0.5}),
    ],
)
def test_a_layer_gives_its_calibrators_probabilities(method, options):
    calibrator = fit(method, LOGITS, TARGETS, **options)
    far = np.concatenate([LOGITS, 40.0 * LOGITS, np.zeros((1, 5))])
    found = layer_of(calibrator)(torch.from_numpy(far)).numpy()
    assert np.abs(found - calibrator(far)).max() < 1e-12


@pytest.mark.parametrize("gamma", [-1.0, -0.999, -0.3, 0.0, 1.0, 7.5])
def test_the_focal_map_holds_at_the_ends_of_its_range(gamma):
    logits = np.array([[800.0, 0.0, -800.0], [0.0, 0.0, 0.0], [30.0, 0.0, 0.0], [1e-3, 0.0, -1.0]])
    calibrator = FocalTemperatureCalibrator("focal_map", {}, 3, 1.0, gamma)
    found = focal_temperature_layer(calibrator)(torch.from_numpy(logits)).numpy()
    assert np.isfinite(found).all()
    assert np.abs(found - focal_map_of_logits(logits, gamma)).max() < 1e-12

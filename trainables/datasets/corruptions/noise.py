"""Noise: Gaussian, shot (Poisson) and impulse (salt and pepper)."""

from __future__ import annotations

import numpy as np

from trainables.datasets.corruptions.base import Constants, Corruption, Floats, Images, constant, levels, shares

GAUSSIAN: Constants[float] = ((0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38))
"""Standard deviations."""

SHOT: Constants[float] = ((500, 250, 100, 75, 50), (60, 25, 12, 5, 3))
"""Photons of a white pixel."""

IMPULSE: Constants[float] = ((0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27))
"""Shares of values that become black or white, half of them each."""


def gaussian_noise(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Add normal noise to every value."""
    return levels(shares(images) + draws.normal(size=images.shape, scale=constant(GAUSSIAN, severity, small)))


def shot_noise(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Count photons: a Poisson number with each value as its mean."""
    photons = float(constant(SHOT, severity, small))
    return levels(draws.poisson(shares(images) * photons) / photons)


def impulse_noise(images: Images, severity: int, small: bool, draws: np.random.RandomState) -> Floats:
    """Make some values black or white."""
    drawn = draws.random((len(images), 2, *images.shape[1:]))
    flipped, salted = drawn[:, 0] <= constant(IMPULSE, severity, small), drawn[:, 1] <= 0.5
    return levels(np.where(flipped, salted.astype(np.float64), shares(images)))


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": gaussian_noise,
    "shot_noise": shot_noise,
    "impulse_noise": impulse_noise,
}

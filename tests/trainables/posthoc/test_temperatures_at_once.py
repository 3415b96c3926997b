"""Temperatures of several networks fitted at once: each that of Brent's method on it alone, and of `fit`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from trainables.posthoc import PosthocUnavailable, fit, fit_many
from trainables.posthoc.temperature import BOUND_RATIO, focal_slope, logit_scale, temperatures_by_nll


def networks(seed: int, count: int, samples: int = 60, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Logits [E, N, K] of very different scales and sharpness, and targets [E, N] that they predict well or badly."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, samples, classes)) * 10 ** rng.uniform(-3, 3, (count, 1, 1))
    best = logits.argmax(axis=2)
    chance = rng.integers(classes, size=best.shape)
    right = rng.uniform(size=best.shape) < rng.uniform(0, 1, (count, 1))
    return logits + rng.normal(0, 10, (count, samples, 1)), np.where(right, best, chance)


def by_brent(logits: np.ndarray, targets: np.ndarray) -> float:
    scale = logit_scale(logits)
    low, high = math.log(scale / BOUND_RATIO), math.log(scale * BOUND_RATIO)

    def slope(log_t: float) -> float:
        return focal_slope(logits, targets, math.exp(log_t)) / scale

    if slope(low) <= 0:
        return math.exp(low)
    return math.exp(high) if slope(high) >= 0 else math.exp(brentq(slope, low, high, xtol=1e-13, rtol=1e-13))


@pytest.mark.parametrize("seed", range(6))
def test_each_is_that_of_brents_method(seed: int) -> None:
    logits, targets = networks(seed, 25)
    found = temperatures_by_nll(logits, targets)
    wanted = [by_brent(each, labels) for each, labels in zip(logits, targets, strict=True)]
    assert [each["temperature"] for each in found] == pytest.approx(wanted, rel=1e-9)
    assert all(each["converged"] == 1 for each in found) and any(each["at_bound"] == 0 for each in found)


def test_all_right_and_all_wrong_are_at_their_bounds() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 40, 3))
    targets = np.stack([logits[0].argmax(axis=1), logits[1].argmin(axis=1)])
    right, wrong = temperatures_by_nll(logits, targets)
    assert right["at_bound"] == wrong["at_bound"] == 1 and right["temperature"] < 1 < wrong["temperature"]
    one, every = np.zeros((1, 4, 3)), np.array([[0, 1, 2, 0]])
    assert temperatures_by_nll(one, every)[0]["converged"] == 1, "equal logits have no best temperature, and end"


@pytest.mark.parametrize("name", ["temperature", "vector"])
def test_many_are_what_each_is_alone_and_a_bad_one_harms_no_other(name: str) -> None:
    logits, targets = networks(3, 4)
    data = [*zip(logits.astype(np.float32), targets, strict=True)]
    data.insert(1, (np.full((60, 5), np.nan), targets[0]))
    data.insert(3, (logits[0][:30], targets[0][:30]))
    found = fit_many(name, data)
    assert isinstance(found[1], PosthocUnavailable) and "must be finite" in str(found[1])
    for at in (0, 2, 3, 4, 5):
        alone = fit(name, *data[at])
        assert found[at].parameters == pytest.approx(alone.parameters, rel=1e-12)
        assert np.allclose(found[at](data[at][0]), alone(data[at][0]))


def test_other_objectives_and_faults_are_those_of_one() -> None:
    logits, targets = networks(1, 2)
    data = [*zip(logits, targets, strict=True)]
    by_ece = fit_many("temperature", data, objective="ece")
    assert [each.parameters for each in by_ece] == [
        fit("temperature", *each, objective="ece").parameters for each in data
    ]
    with pytest.raises(ValueError, match="objective"):
        fit_many("temperature", data, objective="nothing")
    with pytest.raises(ValueError, match="did you mean 'temperature'"):
        fit_many("temperatur", data)

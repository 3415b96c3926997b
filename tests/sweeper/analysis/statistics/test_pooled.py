"""The pooled spread of replicates against a plain analysis of variance, and how often its intervals hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.analysis.statistics.pooled import pooled


def by_seed(groups: list[np.ndarray], first: int = 0) -> list[dict[int, float]]:
    """Return groups as seed → value, no seed in two of them."""
    return [{first + 100 * at + i: float(v) for i, v in enumerate(group)} for at, group in enumerate(groups)]


def test_the_pooled_spread_is_the_residual_of_an_analysis_of_variance() -> None:
    rng = np.random.default_rng(0)
    groups = [rng.normal(centre, 0.3, size) for centre, size in ((1.0, 2), (4.0, 5), (2.0, 1), (9.0, 3))]
    found = pooled(by_seed(groups), "max")
    residual = sum(((group - group.mean()) ** 2).sum() for group in groups)
    assert found is not None and not found.relative and not found.paired
    assert found.freedom == found.total_freedom == 7
    assert found.deviation == pytest.approx(math.sqrt(residual / 7))
    assert found.scores == pytest.approx([group.mean() for group in groups])


def test_losses_are_compared_as_logarithms_that_keep_the_order_of_means() -> None:
    rng = np.random.default_rng(1)
    groups = [centre * rng.uniform(0.5, 1.5, 3) for centre in (0.02, 0.021, 0.4, 7.0)]
    found = pooled(by_seed(groups), "min")
    assert found is not None and found.relative
    shares = [((group / group.mean() - 1) ** 2).sum() for group in groups]
    assert found.deviation == pytest.approx(math.sqrt(sum(shares) / 8))
    assert [found.value(score) for score in found.scores] == pytest.approx([group.mean() for group in groups])
    low, high = found.interval(3)
    assert low < groups[3].mean() < high and low * high == pytest.approx(groups[3].mean() ** 2)


@pytest.mark.parametrize("relative", [False, True])
def test_intervals_hold_the_mean_of_all_seeds_as_often_as_they_say(relative: bool) -> None:
    rng, held = np.random.default_rng(1), 0
    centres = np.array([0.02, 0.05, 0.05, 0.4, 1.0])
    for _ in range(1000):
        noise = rng.normal(0, 0.1, (len(centres), 2))
        values = centres[:, None] * (1 + noise) if relative else centres[:, None] + noise
        found = pooled(by_seed([*values]), "min", relative)
        assert found is not None
        low, high = found.interval(0)
        held += low <= centres[0] <= high
    assert 0.93 < held / 1000 < 0.975


def test_without_a_second_replicate_nothing_is_known_and_zero_has_no_logarithm() -> None:
    assert pooled(by_seed([np.array([0.1]), np.array([0.3])]), "min") is None
    assert pooled([], "min") is None
    found = pooled(by_seed([np.array([0.1, 0.2]), np.array([0.0, 0.0])]), "min")
    assert found is not None and not found.relative and found.freedom == 2

"""The pooled spread of replicates against a plain analysis of variance, and how often its intervals hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.analysis.statistics.basics import spread
from sweeper.analysis.statistics.pooled import seed_noise


def test_the_pooled_spread_is_the_residual_of_an_analysis_of_variance() -> None:
    rng = np.random.default_rng(0)
    groups = [rng.normal(centre, 0.3, size) for centre, size in ((1.0, 2), (4.0, 5), (2.0, 1), (9.0, 3))]
    found = seed_noise(map(spread, groups), relative=False)
    residual = sum(((group - group.mean()) ** 2).sum() for group in groups)
    assert found is not None
    assert found.freedom == 7
    assert found.deviation == pytest.approx(math.sqrt(residual / 7))


@pytest.mark.parametrize("relative", [False, True])
def test_intervals_hold_the_mean_of_all_seeds_as_often_as_they_say(relative: bool) -> None:
    rng, held, apart = np.random.default_rng(1), 0, 0
    centres = np.array([0.02, 0.05, 0.05, 0.4, 1.0])
    for _ in range(1000):
        noise = rng.normal(0, 0.1, (len(centres), 2))
        values = centres[:, None] * np.exp(noise) if relative else centres[:, None] + noise
        spreads = [spread(row) for row in values]
        found = seed_noise(spreads, relative=relative)
        assert found is not None
        low, high = found.interval(spreads[0]) or (0.0, 0.0)
        held += low <= centres[0] <= high
        apart += found.apart(spreads[1], spreads[2])
    assert 0.93 < held / 1000 < 0.975
    assert 0.03 < apart / 1000 < 0.075


def test_without_a_second_replicate_nothing_is_known_and_zero_has_no_share() -> None:
    assert seed_noise([spread([0.1]), spread([0.3])], relative=True) is None
    assert seed_noise([spread([0.0, 0.0])], relative=True) is None
    found = seed_noise([spread([0.1, 0.2]), spread([0.0, 0.0])], relative=True)
    assert found is not None and found.freedom == 1
    assert found.interval(spread([0.0, 0.0])) is None
    assert not found.apart(spread([0.0, 0.0]), spread([1.0, 1.0]))

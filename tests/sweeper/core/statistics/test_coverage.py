"""Simulations: every interval covers as often as it says, and no test rejects more often than it says.

A share of REPETITIONS that is truly .95 varies by a standard error of .005; what is asked for is within four of them.
"""

import numpy as np
import pytest

from sweeper.core.statistics.differences import paired_difference, sign_flip_p, unpaired_difference
from tests.benchmarks.bench_statistics import Condition, simulate

pytestmark = pytest.mark.slow

REPETITIONS = 2000
ERROR = (0.95 * 0.05 / REPETITIONS) ** 0.5
NEAR = 4 * ERROR


def covers(interval: tuple[float, float] | None, truth: float) -> bool:
    return interval is not None and interval[0] <= truth <= interval[1]


@pytest.mark.parametrize("n", [2, 3, 5, 7, 8, 10, 16, 40])
def test_the_interval_of_a_mean_difference_covers(n: int) -> None:
    samples = np.random.default_rng(n).normal(0.3, 1.0, (REPETITIONS, n))
    share = np.mean([covers(paired_difference(np.zeros(n), each).interval, 0.3) for each in samples])
    assert 0.95 - NEAR <= share <= 0.97 + NEAR, "Student's or wider, since few values seem skewed by chance"


@pytest.mark.parametrize("n", [8, 16])
def test_it_covers_where_differences_are_uniform_skewed_or_have_heavy_tails(n: int) -> None:
    rng, size = np.random.default_rng(n), (REPETITIONS, n)
    skewed = np.exp(0.5 * rng.normal(size=size)) - np.exp(0.125)
    for draw in (rng.uniform(-1, 1, size), rng.standard_t(4, size), skewed):
        assert np.mean([covers(paired_difference(np.zeros(n), each).interval, 0.0) for each in draw]) >= 0.95 - NEAR


@pytest.mark.parametrize(("first", "second", "deviation"), [(8, 8, 1.0), (8, 8, 3.0), (5, 16, 2.0), (16, 10, 0.5)])
def test_the_interval_of_independent_samples_covers(first: int, second: int, deviation: float) -> None:
    rng = np.random.default_rng(first * second)
    pairs = zip(rng.normal(0, 1, (REPETITIONS, first)), rng.normal(0.5, deviation, (REPETITIONS, second)), strict=True)
    share = np.mean([covers(unpaired_difference(a, b).interval, 0.5) for a, b in pairs])
    assert 0.95 - NEAR <= share <= 0.97 + NEAR


@pytest.mark.parametrize("n", [5, 6, 8, 12, 16])
def test_the_sign_flip_test_keeps_its_size(n: int) -> None:
    samples = np.random.default_rng(n).normal(0, 1, (REPETITIONS if n <= 12 else 1000, n))
    rejected = np.mean([sign_flip_p(each) < 0.05 for each in samples])
    assert rejected <= 0.05 + NEAR


@pytest.mark.parametrize("spread", ["equal spreads", "best one noisy ×6", "ties (1/360)"])
def test_what_the_first_screen_says_holds_where_spreads_are_unequal(spread: str) -> None:
    """A part of `make bench-statistics`, whose table has all of it."""
    rows = simulate(Condition(spread, 8, 2, draws=400))
    assert not [row for row in rows if row.nominal is not None and row.rate > row.nominal + 0.02 + 2 * row.error]

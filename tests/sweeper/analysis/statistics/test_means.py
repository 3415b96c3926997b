"""Means of few values: intervals that cover where spreads differ and values are skewed, and p that agree with them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_ind

from sweeper.analysis.statistics.means import difference_of, mean_of

KINDS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "t3": lambda rng, size: rng.standard_t(3, size),
    "log-normal": lambda rng, size: np.exp(0.5 * rng.normal(size=size)) - np.exp(0.125),
}
DRAWS = 600
NEAR = 3 * (0.05 * 0.95 / DRAWS) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [3, 5, 12, 40])
def test_the_interval_of_a_mean_covers(kind: str, n: int) -> None:
    rng = np.random.default_rng(n)
    found = [mean_of(KINDS[kind](rng, n)) for _ in range(DRAWS)]
    covers = [interval[0] <= 0 <= interval[1] for each in found if (interval := each.interval()) is not None]
    assert len(covers) == DRAWS and np.mean(covers) >= 0.95 - NEAR
    assert covers == [each.p >= 0.05 for each in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "second", "wide"), [(3, 3, 1), (4, 4, 3), (3, 12, 1), (8, 24, 3), (24, 24, 3)])
def test_the_interval_of_a_difference_covers(kind: str, first: int, second: int, wide: float) -> None:
    rng = np.random.default_rng(first)
    found = [difference_of(wide * KINDS[kind](rng, first), KINDS[kind](rng, second)) for _ in range(DRAWS)]
    covers = [interval[0] <= 0 <= interval[1] for each in found if (interval := each.interval()) is not None]
    assert np.mean(covers) >= 0.95 - NEAR - 0.02 * (kind == "log-normal" and wide > 1)


def test_it_is_students_or_welchs_where_nothing_is_skewed() -> None:
    symmetric = [-2.0, -1.0, 0.0, 1.0, 2.0]
    low, high = mean_of(symmetric).interval() or (0, 0)
    assert (low, high) == pytest.approx((-1.963, 1.963), abs=1e-3)
    other = [3.0, 4.0, 5.0, 6.0, 7.0]
    found, expected = difference_of(symmetric, other), ttest_ind(symmetric, other, equal_var=False)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.p == pytest.approx(expected.pvalue)


def test_values_that_do_not_vary_have_no_interval_but_the_chance_of_their_signs() -> None:
    assert mean_of([0.5] * 6).interval() is None and mean_of([0.5] * 6).p == 2**-5
    assert mean_of([0.0] * 6).p == 1.0 and mean_of([0.5]).p == 1.0
    assert difference_of([1.0] * 4, [2.0] * 4).p == pytest.approx(2 / 70)
    assert difference_of([1.0] * 4, [1.0] * 4).p == 1.0

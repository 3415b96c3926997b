"""Units whose values are skewed or spread unequally: the judge's intervals for them cover."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from sweeper.judging.judge import change
from sweeper.judging.pairs import independent_units
from sweeper.judging.question import NOT_COMPARED, OPEN, Verdict

KINDS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "t3": lambda rng, size: rng.standard_t(3, size),
    "log-normal": lambda rng, size: np.exp(0.5 * rng.normal(size=size)) - np.exp(0.125),
}
DRAWS = 300
NEAR = 3 * (0.05 * 0.95 / DRAWS) ** 0.5


def of_mean(values: Sequence[float]) -> Verdict:
    """Return the verdict on a mean against 0."""
    units = dict(enumerate(values))
    return change("ece", dict.fromkeys(units, 0.0), units, skewed=True)


def of_samples(one: Sequence[float], other: Sequence[float]) -> Verdict:
    """Return the verdict on the second of two independent samples."""
    return change("ece", dict(enumerate(one)), dict(enumerate(other)), paired=False, skewed=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [3, 5, 10, 25])
def test_the_interval_of_a_mean_covers(kind: str, n: int) -> None:
    rng = np.random.default_rng(n)
    found = [of_mean(KINDS[kind](rng, n)) for _ in range(DRAWS)]
    covers = [verdict.code == OPEN for verdict in found]
    assert np.mean(covers) >= 0.95 - NEAR
    assert covers == [verdict.p >= 0.05 for verdict in found] == [verdict.low <= 0 <= verdict.high for verdict in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "second", "wide"), [(4, 4, 3), (3, 12, 1), (8, 24, 3)])
def test_the_interval_of_a_difference_covers(kind: str, first: int, second: int, wide: float) -> None:
    rng = np.random.default_rng(first)
    found = [of_samples(wide * KINDS[kind](rng, first), KINDS[kind](rng, second)) for _ in range(DRAWS)]
    covers = [verdict.code == OPEN for verdict in found]
    assert np.mean(covers) >= 0.95 - NEAR - 0.02 * (kind == "log-normal" and wide > 1)
    assert covers == [verdict.p >= 0.05 for verdict in found]


def test_it_is_students_or_welchs_where_nothing_is_skewed_and_wider_elsewhere() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(0, 1, 6)
    symmetric = 3 + np.concatenate([half, -half])
    low, high = stats.ttest_1samp(symmetric, 0).confidence_interval(0.95)
    found = of_mean(symmetric)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-3)
    expected = stats.ttest_ind(symmetric, symmetric - 1, equal_var=False)
    assert of_samples(symmetric - 1, symmetric).p == pytest.approx(expected.pvalue, rel=1e-3)
    low, high = stats.ttest_1samp(np.exp(symmetric), 0).confidence_interval(0.95)
    found = of_mean(np.exp(symmetric))
    assert found.high > high * 1.03 and found.low == pytest.approx(low, rel=1e-3, abs=1e-3 * high)


def test_the_side_of_a_comparison_does_not_change_it() -> None:
    one, other = np.exp(np.arange(6.0) / 2), np.arange(5.0)
    there, back = of_samples(one, other), of_samples(other, one)
    assert (there.low, there.high, there.p) == pytest.approx((-back.high, -back.low, back.p))


def test_values_that_differ_by_rounding_only_are_no_certainty() -> None:
    alike = of_mean([0.3, 0.1 + 0.2, 0.3])
    assert alike.low < 0.29 and alike.p > 0.001
    assert of_mean([0.0] * 6).p == 1 and of_mean([0.5]).code == NOT_COMPARED


def test_configurations_are_units_unless_they_share_seeds() -> None:
    assert independent_units([("a", 1), ("a", 2), ("b", 3)]) == {("a", 1): "a", ("a", 2): "a", ("b", 3): "b"}
    assert independent_units([("a", 1), ("a", 2), ("b", 2)]) == {("a", 1): 1, ("a", 2): 2, ("b", 2): 2}

"""Means of few values: intervals that cover where spreads differ and values are skewed, and p that agree with them."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats
from scipy.stats import ttest_ind

from sweeper.core.statistics.differences import (
    EXACT_PAIRS,
    RANDOM_SIGNS,
    difference_of,
    holm,
    independent_units,
    mean_of,
    p_text,
    paired_difference,
    sign_flip_p,
    smallest_holm,
    unpaired_difference,
)

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
    assert covers == [each.p >= 0.05 for each in found]


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


NUMBERS = st.floats(-100, 100).map(lambda value: round(value, 3))


@given(st.lists(NUMBERS, min_size=1, max_size=7))
def test_the_p_counts_sign_patterns(differences: list[float]) -> None:
    seen = abs(sum(differences))
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    far = sum(abs(sum(s * d for s, d in zip(p, differences, strict=True))) >= seen - 1e-9 for p in patterns)
    assert sign_flip_p(differences) == pytest.approx(far / len(patterns))


@pytest.mark.parametrize("seed", range(6))
def test_drawn_signs_agree_with_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    differences = rng.normal(0.2, 1, EXACT_PAIRS + 12)
    expected = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=9999, rng=np.random.default_rng(seed + 100)
    ).pvalue
    assert sign_flip_p(differences) == pytest.approx(expected, abs=0.025)


@pytest.mark.parametrize("n", [2, 5, 7, 8, 20])
def test_the_interval_is_students_where_nothing_is_skewed_and_wider_elsewhere(n: int) -> None:
    rng = np.random.default_rng(n)
    half = rng.normal(0, 1, n // 2)
    symmetric = 0.5 + np.concatenate([half, -half, np.zeros(n % 2)])
    skewed = np.exp(symmetric)
    for differences, same in ((symmetric, True), (skewed, n == 2)):
        low, high = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
        found = paired_difference(np.zeros(n), differences).interval
        assert found[0] <= low + 1e-9 and high - 1e-9 <= found[1]
        assert (found == pytest.approx((low, high))) is same


def test_pairs_that_are_all_the_same_are_one_unit() -> None:
    found = paired_difference([0.1] * 9, [0.018] * 9)
    assert found.interval is None and found.p == 1 and found.mean == pytest.approx(-0.082)
    shifted = paired_difference([1.0, 2.0, 4.0], [2.0, 3.0, 5.0])
    assert shifted.interval is None and shifted.p == 0.25, "each pair is a unit of its own"


def test_configurations_are_units_unless_they_share_seeds() -> None:
    assert independent_units([("a", 1), ("a", 2), ("b", 3)]) == {("a", 1): "a", ("a", 2): "a", ("b", 3): "b"}
    assert independent_units([("a", 1), ("a", 2), ("b", 2)]) == {("a", 1): 1, ("a", 2): 2, ("b", 2): 2}


def test_ends() -> None:
    assert paired_difference([], []).p == 1
    assert paired_difference([1.0], [2.0]).interval is None
    assert paired_difference([1.0, 2.0], [1.0, 2.0]).p == 1
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference([1.0], [])
    assert (p_text(0.0002), p_text(0.031)) == ("p < 0.001", "p = 0.031")


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_agrees_with_its_definition(ps: list[float]) -> None:
    m, order = len(ps), np.argsort(ps, kind="stable")
    expected = [0.0] * m
    for rank, at in enumerate(order):
        expected[at] = max(min(1.0, (m - earlier) * ps[order[earlier]]) for earlier in range(rank + 1))
    assert holm(ps) == pytest.approx(expected)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, EXACT_PAIRS, EXACT_PAIRS + 1, 30])
def test_the_smallest_p_is_that_of_differences_that_all_agree(n: int) -> None:
    found = paired_difference(np.zeros(n), np.linspace(1, 2, n))
    if n <= EXACT_PAIRS:
        assert found.p == found.smallest_p
    else:
        assert 1 / (1 + RANDOM_SIGNS) == found.smallest_p <= found.p <= 2.0 ** (1 - n) + 5e-4


def test_a_p_that_cannot_be_small_says_so() -> None:
    few = paired_difference([0.2, 0.21], [0.1, 0.12])
    assert few.interval is not None and (few.p, few.smallest_p) == (0.5, 0.5)
    assert p_text(few.p, few.smallest_p) == "p = 0.5 (at least 0.5 at this n)"
    enough = paired_difference(np.zeros(8), np.linspace(1, 2, 8))
    assert p_text(enough.p, enough.smallest_p) == "p = 0.0078"
    assert smallest_holm([0.02, 0.03, 0.25]) == pytest.approx(0.06) and smallest_holm([]) == 0
    assert min(holm([0.02, 0.03, 0.25])) >= smallest_holm([0.02, 0.03, 0.25])


def test_many_pairs_are_counted_in_blocks_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = np.random.default_rng(0).normal(0.02, 1.0, 3000)
    tracemalloc.start()
    p = sign_flip_p(differences)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6, "all at once they are 480 MB"
    small = differences[:40]
    found = sign_flip_p(small)
    monkeypatch.setattr("sweeper.core.statistics.differences.SIGNS_AT_ONCE", 40 * 7)
    assert sign_flip_p(small) == found and 0 < p < 1


def test_samples_that_do_not_vary_have_no_interval() -> None:
    found = unpaired_difference([0.9, 0.9], [0.8, 0.8 * (1 + 1e-16)])
    assert found.interval is None and found.mean == pytest.approx(-0.1)

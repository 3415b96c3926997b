"""The best set against tables, brute force and what is known of the winner; coverage is in test_coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sweeper.analysis.statistics.best_set import best_set, largest_of, with_the_best


@pytest.mark.parametrize(
    ("configurations", "freedom", "factor"),
    [(2, 10, 1.81), (3, 10, 2.15), (4, 10, 2.34), (6, 20, 2.39), (3, 5, 2.44), (2, 5, 2.02), (5, 60, 2.21)],
)
def test_dunnetts_factor_is_that_of_his_table(configurations: int, freedom: int, factor: float) -> None:
    """One-sided, 5 % (Dunnett 1955, Table 1a)."""
    assert with_the_best(configurations, freedom, 0.95) == pytest.approx(factor, abs=0.012)


@pytest.mark.parametrize(("count", "freedom"), [(2, 4), (6, 12), (30, 60)])
def test_factors_agree_with_drawing(count: int, freedom: int) -> None:
    rng = np.random.default_rng(count)
    normal = rng.normal(size=(100_000, count))
    deviation = np.sqrt(rng.chisquare(freedom, 100_000) / freedom)
    ahead = (normal[:, 1:].max(axis=1) - normal[:, 0]) / np.sqrt(2) / deviation
    assert np.mean(ahead <= with_the_best(count, freedom, 0.95)) == pytest.approx(0.95, abs=0.004)
    below = normal.max(axis=1) / deviation <= largest_of(count, freedom, 0.975)
    assert np.mean(below) == pytest.approx(0.975, abs=3e-3)


def test_of_one_it_is_students_quantile() -> None:
    assert largest_of(1, 7, 0.975) == pytest.approx(stats.t.ppf(0.975, 7))


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 4), st.sampled_from(["min", "max"]))
def test_mirrored_values_give_the_mirrored_answer(seed: int, configurations: int, replicates: int, mode: str) -> None:
    values = np.random.default_rng(seed).normal(size=(configurations, replicates))
    found = best_set([dict(enumerate(row)) for row in values], mode, relative=False)
    other = best_set([dict(enumerate(-row)) for row in values], "max" if mode == "min" else "min", relative=False)
    assert found is not None and other is not None and found.paired
    assert found.members == other.members and found.value == -other.value
    assert found.interval == pytest.approx((-other.interval[1], -other.interval[0]))
    means = values.mean(axis=1)
    assert found.members[0] == (means.argmin() if mode == "min" else means.argmax())


def test_who_is_far_behind_is_out_and_who_is_near_is_in() -> None:
    means, luck = [0.10, 0.14, 0.5, 0.12, 0.15], (-0.03, -0.01, 0.01, 0.03)
    values = [{10 * i + j: m + by for j, by in enumerate(luck)} for i, m in enumerate(means)]
    found = best_set(values, "min", relative=False)  # s = .0258, d = 2.36: what is worse by more than .043 is out
    assert found is not None and not found.paired
    assert found.members == (0, 3, 1) and found.configurations == 5


def test_losses_are_compared_in_proportion_to_their_size() -> None:
    rng = np.random.default_rng(2)
    means = [0.010, 0.0104, 0.05, 3.0, 3.1]
    values = [{10 * i + j: m * (1 + by) for j, by in enumerate(rng.normal(0, 0.05, 3))} for i, m in enumerate(means)]
    relative, absolute = best_set(values, "min"), best_set(values, "min", relative=False)
    assert relative is not None and set(relative.members) == {0, 1}
    assert absolute is not None and set(absolute.members) == {0, 1, 2}, "the spread is that of large losses"
    assert relative.value == pytest.approx(absolute.value) and relative.corrected == absolute.corrected
    assert relative.interval[0] > 0 > absolute.interval[0]


def test_the_luck_of_shared_seeds_falls_out() -> None:
    rng = np.random.default_rng(1)
    luck = rng.normal(0, 1.0, 5)
    values = [dict(enumerate(m + luck + rng.normal(0, 0.01, 5))) for m in (0.0, 0.1, 0.2)]
    apart = [{seed + 10 * at: value for seed, value in each.items()} for at, each in enumerate(values)]
    paired, unpaired = best_set(values, "max"), best_set(apart, "max")
    assert paired is not None and paired.members == (2,)
    assert unpaired is not None and set(unpaired.members) == {0, 1, 2}


def test_the_corrected_value_is_measured_on_replicates_that_did_not_choose() -> None:
    found = best_set([{1: 0.0, 2: 1.0}, {3: 0.9, 4: 0.2}], "max")
    assert found is not None and found.value == pytest.approx(0.55)
    # without the first replicates the first one wins by 1.0 and measures 0.0; without the second the other, by 0.9, 0.2
    assert found.corrected == pytest.approx((0.0 + 0.2) / 2)


def test_without_a_spread_nothing_is_said() -> None:
    assert best_set([{1: 0.5}, {2: 0.7}], "max") is None
    assert best_set([], "max") is None
    found = best_set([{1: 0.5, 2: 0.6}, {3: 0.7}, {}], "max")
    assert found is not None and found.configurations == 2 and found.members[0] == 1

"""Seeds that went astray: found by all trainings together, never the best seed, and rarely among clean ones."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sweeper.core.statistics.spreads import FAR, outliers


def by_seed(table: np.ndarray) -> dict[str, dict[int, float]]:
    return {f"c{at}": dict(enumerate(row.tolist())) for at, row in enumerate(table)}


def naive(table: np.ndarray, spread: float) -> set[tuple[str, int]]:
    """Every seed with a gap below it, under which at least half of the seeds (rounded down) lie."""
    flagged = set()
    for at, row in enumerate(table):
        for seed, value in enumerate(row):
            better = sorted(v for v in row if v <= value)
            gaps = [place for place, (a, b) in enumerate(itertools.pairwise(better), 1) if b - a > FAR * spread]
            if any(place >= len(row) // 2 for place in gaps):
                flagged.add((f"c{at}", seed))
    return flagged


@given(st.integers(0, 10_000), st.integers(12, 40), st.integers(2, 5))
@settings(max_examples=20)
def test_those_beyond_a_gap_are_flagged_on_the_worse_side_alone(seed: int, k: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.uniform(-1, 1, (k, 1)) * 100 + rng.normal(size=(k, n))
    table[0, 0] += 60
    table[1, 0] -= 60
    pairs = np.concatenate([np.abs(np.subtract.outer(row, row))[np.triu_indices(n, 1)] for row in table[2:]])
    spread = 2.2219 * np.quantile(pairs, 0.25)
    found = outliers(by_seed(table), "min") if (table <= 0).any() else None
    if found is not None:
        assert set(found.flagged) >= naive(table, 1.4 * spread) >= {("c0", 0)}
        assert set(found.flagged) <= naive(table, 0.6 * spread)
        assert found.trainings == k * n and len(found.kept(by_seed(table))["c0"]) == n - 1


def test_one_lucky_seed_does_not_make_the_others_outliers() -> None:
    table = np.random.default_rng(3).normal(size=(12, 5))
    table[0, 0] -= 90
    assert outliers(by_seed(table), "min").flagged == ()


def test_larger_is_better_mirrors() -> None:
    table = np.random.default_rng(0).normal(size=(20, 3))
    table[4, 1] += 50
    assert outliers(by_seed(table), "min").flagged == outliers(by_seed(-table), "max").flagged == (("c4", 1),)


def test_a_unit_of_measurement_changes_nothing() -> None:
    table = np.exp(0.1 * np.random.default_rng(1).normal(size=(20, 2)))
    table[3, 0] *= 20
    assert outliers(by_seed(table), "min") == outliers(by_seed(1e-3 * table), "min")
    assert outliers(by_seed(table), "min").flagged == (("c3", 0),)


@pytest.mark.parametrize("table", [np.zeros((0, 2)), np.array([[0.1], [0.2], [99.0]]), np.full((9, 3), 0.5)])
def test_where_no_spread_is_known_none_is_flagged(table: np.ndarray) -> None:
    assert outliers(by_seed(table), "min").flagged == ()


@pytest.mark.parametrize(("k", "n"), [(12, 3), (8, 5), (48, 2)])
def test_one_in_five_is_found_and_clean_ones_are_left_alone(k: int, n: int) -> None:
    """A bad optimum is 20 spreads worse; two of two that are both bad cannot be seen."""
    rng, found, bad, false, clean = np.random.default_rng(k), 0, 0, 0, 0
    for _ in range(40):
        astray = rng.random((k, n)) < 0.2
        flagged = set(outliers(by_seed(np.exp(0.1 * rng.normal(size=(k, n)) + 2.0 * astray)), "min").flagged)
        truly = {(f"c{i}", int(j)) for i, j in zip(*np.nonzero(astray), strict=True)}
        found, bad, false = found + len(flagged & truly), bad + len(truly), false + len(flagged - truly)
        clean += len(outliers(by_seed(np.exp(0.1 * rng.normal(size=(k, n)))), "min").flagged)
    assert found >= 0.5 * bad and false <= 0.002 * 40 * k * n and clean == 0


def test_of_one_long_tail_few_are_flagged() -> None:
    """Log-normal values, skewness 3.7."""
    rng, flagged = np.random.default_rng(2), 0
    for _ in range(40):
        flagged += len(outliers(by_seed(np.exp(0.8 * rng.normal(size=(24, 3))) - 5), "min").flagged)
    assert flagged <= 0.03 * 40 * 72


def test_the_worst_seed_of_a_noisy_configuration_is_no_outlier() -> None:
    """One of twelve spreads six times as much: its worst seed is often beyond eight typical spreads."""
    flagged = 0
    for seed in range(60):
        table = np.random.default_rng(seed).normal(size=(12, 3)) * np.where(np.arange(12) == 0, 6, 1)[:, None]
        flagged += len(outliers(by_seed(table), "max").flagged)
    assert flagged <= 9

"""Statistics against scipy, numpy and plain references."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings, strategies as st

from sweeper.core.statistics.basics import correlation, log_log_fit, ranks, spearman, spread, spread_text


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=3, max_size=20), st.integers(0, 10**6))
def test_spearman_agrees_with_scipy_with_ties(x: list[int], seed: int) -> None:
    y = np.random.default_rng(seed).integers(0, 5, len(x))
    np.testing.assert_allclose(ranks(x), scipy.stats.rankdata(x))
    if len(set(x)) == 1 or len(set(y.tolist())) == 1:
        assert np.isnan(spearman(x, y))
    else:
        np.testing.assert_allclose(spearman(x, y), scipy.stats.spearmanr(x, y).statistic, atol=1e-12)


def test_correlation_says_when_it_cannot_tell() -> None:
    assert correlation([1, 2, 3], [1, 2, 3]) is None
    assert correlation([1, 1, 1, 1], [1, 2, 3, 4]) is None
    few = correlation([1, 2, 3, 4], [4, 3, 2, 1])
    assert few.interval is None
    assert few.rho == pytest.approx(-1) and few.text() == "ρ = −1.00 (n = 4)"
    perfect = correlation(range(12), range(12))
    assert perfect.interval is not None and 0.8 < perfect.interval[0] < 1 == perfect.interval[1]


@pytest.mark.parametrize("n", [8, 24])
def test_a_correlations_interval_covers(n: int) -> None:
    """A percentile bootstrap of 8 pairs without relation excludes 0 in 8 of 100 samples, and of related ones more."""
    rng, covered, excluded = np.random.default_rng(n), 0, 0
    truth = 6 / np.pi * np.arcsin(0.6 / 2)  # Spearman's of normal values with Pearson's .6
    for _ in range(200):
        x, noise = rng.normal(size=n), rng.normal(size=n)
        related, unrelated = correlation(x, 0.6 * x + 0.8 * noise), correlation(x, noise)
        covered += related.interval[0] <= truth <= related.interval[1]
        excluded += unrelated.p < 0.05
        assert (unrelated.p < 0.05) == (unrelated.interval[0] >= 0 or unrelated.interval[1] <= 0)
    assert covered / 200 >= 0.95 - 0.03 and excluded / 200 <= 0.05 + 0.03


def test_strata_with_unequal_levels_are_not_mixed() -> None:
    x, strata = [1, 2, 3, 4, 1, 2, 3, 4], [0, 0, 0, 0, 1, 1, 1, 1]
    found = correlation(x, [4, 3, 2, 1, 104, 103, 102, 101], strata)
    assert found.rho == pytest.approx(-1) and found.n == 8 and found.p < 0.05
    mixed = correlation(x, [4, 3, 2, 1, 104, 103, 102, 101])
    assert mixed.rho > -0.5


def test_ten_thousand_pairs_take_a_second() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=10_000)
    found = correlation(x, x + 3 * rng.normal(size=10_000))
    assert found.interval is not None and found.p < 1e-6
    assert found.interval[1] - found.interval[0] == pytest.approx(4 / 100, rel=0.2)


def test_spread_is_the_sample_standard_deviation() -> None:
    values = [0.1, 0.2, 0.4]
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values)) and found.deviation == pytest.approx(np.std(values, ddof=1))
    assert found.n == 3 and found.text() == "0.23 ± 0.15"
    assert spread([0.5]).deviation is None and spread([0.5]).text() == "0.5"
    assert np.isnan(spread([]).mean)


@pytest.mark.parametrize(
    ("mean", "deviation", "scale", "text"),
    [
        (0.12345, 0.00678, 1, "0.1235 ± 0.0068"),
        (0.9123, 0.0101, 100, "91.2 ± 1.0"),
        (1234.5, 67.8, 1, "1234 ± 68"),
        (0.5, None, 1, "0.5"),
        (0.5, 0.0, 1, "0.5 (no spread)"),
        (0.0855123, 2e-9, 1, "0.0855 (no spread)"),  # of seeds that share one draw of the data and one optimum
    ],
)
def test_spread_text_rounds_to_the_deviation(mean: float, deviation: float | None, scale: float, text: str) -> None:
    assert spread_text(mean, deviation, scale=scale) == text


def test_the_cubic_fit_finds_a_cubic() -> None:
    x = np.logspace(0, 3, 12)
    u = np.log10(x)
    y = 10 ** (0.1 * u**3 - 0.3 * u**2 + 0.2 * u - 1)
    fit = log_log_fit(x, y)
    assert fit.r_squared == pytest.approx(1) and fit.n == 12
    xs, ys = fit.curve(12)
    np.testing.assert_allclose(xs, x)
    np.testing.assert_allclose(ys, y, rtol=1e-6)
    assert log_log_fit(x[:11], y[:11]) is None, "a cubic bends through any eleven"
    assert log_log_fit([2.0] * 12, y) is None

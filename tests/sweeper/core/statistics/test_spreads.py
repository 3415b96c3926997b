"""Moderated spreads against plain integration, and what is known of limits: equal spreads, ties, shared seeds.

Seeds that went astray are found by all trainings together, never the best seed, and rarely among clean ones.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from sweeper.core.statistics import spreads as module
from sweeper.core.statistics.spreads import FAR, Prior, outliers, spreads


def by_seed(table: np.ndarray, shared: bool = False) -> list[dict[int, float]]:
    """Return rows as seed → value, no seed in two of them unless they are shared."""
    return [{(0 if shared else 100 * at) + i: float(v) for i, v in enumerate(row)} for at, row in enumerate(table)]


def plain_posterior(squares: list[float], freedom: int, logs: np.ndarray) -> np.ndarray:
    """The probabilities of each σ by counting over all of m, τ and σ, one configuration at a time."""
    total, tails = np.zeros((len(squares), len(logs))), Prior.of(len(squares))
    for variation, centre in itertools.product(tails.variations, logs[::2]):
        prior = stats.t.pdf(logs, tails.freedom, centre, variation)
        prior /= prior.sum()
        likelihood = np.array(
            [stats.chi2.pdf(freedom * s / np.exp(2 * logs), freedom) / np.exp(2 * logs) for s in squares]
        )
        joint = likelihood * prior
        marginal = joint.sum(axis=1)
        for at in range(len(squares)):
            total[at] += np.prod(np.delete(marginal, at)) * joint[at]
    return total / total.sum(axis=1, keepdims=True)


def test_the_posterior_is_that_of_plain_integration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRID", 16)
    table = np.array([[0.0, 0.2, 0.1], [5.0, 5.1, 5.3], [1.0, 2.0, 1.4], [3.0, 3.05, 3.02]])
    found = spreads(by_seed(table), "max")
    step = 0.02  # the smallest difference of two values, whose rounding adds u²/12
    squares = [row.var(ddof=1) + step**2 / 12 for row in table]
    expected = plain_posterior(squares, 2, np.log(found.deviations))
    assert found.weights == pytest.approx(expected, abs=1e-9)


def test_cauchys_tails_follow_for_many_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRID", 12)
    table = np.random.default_rng(2).normal(size=(26, 2)) * np.geomspace(0.1, 10, 26)[:, None]
    found = spreads(by_seed(table), "max")
    step = np.diff(np.unique(table)).min()
    expected = plain_posterior([row.var(ddof=1) + step**2 / 12 for row in table], 1, np.log(found.deviations))
    assert found.weights == pytest.approx(expected, abs=1e-9)


def test_with_many_replicates_it_is_students_interval() -> None:
    table = np.random.default_rng(0).normal(2.0, 0.3, (6, 60))
    found = spreads(by_seed(table), "max")
    expected = stats.t.interval(0.95, 59, table[0].mean(), stats.sem(table[0]))
    assert found.interval(0) == pytest.approx(expected, abs=0.12 * (expected[1] - expected[0]))


def test_losses_are_compared_as_logarithms_that_keep_the_order_of_means() -> None:
    table = np.random.default_rng(1).uniform(0.5, 1.5, (4, 3)) * np.array([[0.02], [0.021], [0.4], [7.0]])
    found = spreads(by_seed(table), "min")
    assert found.relative
    assert [found.value(score) for score in found.scores] == pytest.approx(table.mean(axis=1))
    low, high = found.interval(3)
    assert low < table[3].mean() < high and low * high == pytest.approx(table[3].mean() ** 2)


def test_shared_seeds_leave_differences_alone() -> None:
    rng = np.random.default_rng(4)
    table, luck = rng.normal(0, 0.1, (5, 4)), rng.normal(0, 3.0, 4)
    plain, shifted = spreads(by_seed(table, True), "max"), spreads(by_seed(table + luck, True), "max")
    assert plain is not None and shifted is not None and shifted.paired
    assert shifted.weights == pytest.approx(plain.weights, abs=1e-4)  # what rounding adds follows from other gaps
    assert shifted.alone.quantile(0, 0.025) < 0.5 < shifted.total.quantile(0, 0.025)


def test_choosing_from_many_widens_the_side_that_luck_favours() -> None:
    found = spreads(by_seed(np.random.default_rng(5).normal(0.5, 0.01, (6, 4))), "max")
    one, many = found.interval(2), found.interval(2, chosen_from=48)
    assert many[0] < one[0] and many[1] == one[1]


def test_equal_replicates_of_a_quantised_value_do_not_show_a_spread_of_zero() -> None:
    """Two accuracies of 360 samples may be the same by rounding: 353/360 twice."""
    table = np.array([[353, 353], [350, 354], [349, 352], [351, 351]]) / 360
    found = spreads(by_seed(table), "max")
    low, high = found.interval(0)
    assert low < 352.5 / 360 and high > 353.5 / 360


@pytest.mark.parametrize("values", [[], [{1: 0.1}, {2: 0.3}], [{1: 0.5, 2: 0.5}, {3: 0.5, 4: 0.5}]])
def test_without_anything_that_differs_nothing_is_known(values: list[dict[int, float]]) -> None:
    assert spreads(values, "min") is None


def test_a_configuration_with_one_replicate_takes_the_others_spread() -> None:
    found = spreads([{1: 0.5, 2: 0.6}, {3: 0.5, 4: 0.58}, {5: 0.7}], "max")
    assert 0.01 < found.total.quantile(2, 0.16) < 1.0 and found.sizes.tolist() == [2, 2, 1]


def test_zero_has_no_logarithm() -> None:
    found = spreads([{1: 0.1, 2: 0.2}, {3: 0.0, 4: 0.0}], "min")
    assert found is not None and not found.relative


@pytest.mark.parametrize("common", [True, False])
def test_a_training_that_is_repeated_is_learnt_from_once(common: bool) -> None:
    """A grid over something without effect on common seeds has one configuration's spread, however often repeated."""
    random = np.random.default_rng(0)
    values = by_seed(1.0 + 0.1 * np.arange(4)[:, None] + 0.02 * random.normal(size=(4, 3)), common)
    once, often = spreads(values, "min"), spreads([*values, *[values[0]] * 8], "min")
    assert once is not None and often is not None and once.paired == often.paired == common
    for place, same in [*enumerate(range(4)), *((at, 0) for at in range(4, 12))]:
        assert often.interval(place) == once.interval(same)


def numbered(table: np.ndarray) -> dict[str, dict[int, float]]:
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
    found = outliers(numbered(table), "min") if (table <= 0).any() else None
    if found is not None:
        assert set(found.flagged) >= naive(table, 1.4 * spread) >= {("c0", 0)}
        assert set(found.flagged) <= naive(table, 0.6 * spread)
        assert found.trainings == k * n and len(found.kept(numbered(table))["c0"]) == n - 1


def test_one_lucky_seed_does_not_make_the_others_outliers() -> None:
    table = np.random.default_rng(3).normal(size=(12, 5))
    table[0, 0] -= 90
    assert outliers(numbered(table), "min").flagged == ()


def test_larger_is_better_mirrors() -> None:
    table = np.random.default_rng(0).normal(size=(20, 3))
    table[4, 1] += 50
    assert outliers(numbered(table), "min").flagged == outliers(numbered(-table), "max").flagged == (("c4", 1),)


def test_a_unit_of_measurement_changes_nothing() -> None:
    table = np.exp(0.1 * np.random.default_rng(1).normal(size=(20, 2)))
    table[3, 0] *= 20
    assert outliers(numbered(table), "min") == outliers(numbered(1e-3 * table), "min")
    assert outliers(numbered(table), "min").flagged == (("c3", 0),)


@pytest.mark.parametrize("table", [np.zeros((0, 2)), np.array([[0.1], [0.2], [99.0]]), np.full((9, 3), 0.5)])
def test_where_no_spread_is_known_none_is_flagged(table: np.ndarray) -> None:
    assert outliers(numbered(table), "min").flagged == ()


@pytest.mark.parametrize(("k", "n"), [(12, 3), (8, 5), (48, 2)])
def test_one_in_five_is_found_and_clean_ones_are_left_alone(k: int, n: int) -> None:
    """A bad optimum is 20 spreads worse; two of two that are both bad cannot be seen."""
    rng, found, bad, false, clean = np.random.default_rng(k), 0, 0, 0, 0
    for _ in range(40):
        astray = rng.random((k, n)) < 0.2
        flagged = set(outliers(numbered(np.exp(0.1 * rng.normal(size=(k, n)) + 2.0 * astray)), "min").flagged)
        truly = {(f"c{i}", int(j)) for i, j in zip(*np.nonzero(astray), strict=True)}
        found, bad, false = found + len(flagged & truly), bad + len(truly), false + len(flagged - truly)
        clean += len(outliers(numbered(np.exp(0.1 * rng.normal(size=(k, n)))), "min").flagged)
    assert found >= 0.5 * bad and false <= 0.002 * 40 * k * n and clean == 0


def test_of_one_long_tail_few_are_flagged() -> None:
    """Log-normal values, skewness 3.7."""
    rng, flagged = np.random.default_rng(2), 0
    for _ in range(40):
        flagged += len(outliers(numbered(np.exp(0.8 * rng.normal(size=(24, 3))) - 5), "min").flagged)
    assert flagged <= 0.03 * 40 * 72


def test_the_worst_seed_of_a_noisy_configuration_is_no_outlier() -> None:
    """One of twelve spreads six times as much: its worst seed is often beyond eight typical spreads."""
    flagged = 0
    for seed in range(60):
        table = np.random.default_rng(seed).normal(size=(12, 3)) * np.where(np.arange(12) == 0, 6, 1)[:, None]
        flagged += len(outliers(numbered(table), "max").flagged)
    assert flagged <= 9

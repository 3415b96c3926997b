"""Isotonic reliability curves against plain pooling, scikit-learn and what holds of calibrated confidences."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import binom

from trainables.metrics import reliability_bins
from trainables.metrics.isotonic import consistency_band, consistency_bars, decomposition, interpolated, isotonic_levels


def pooled(score: list[float], outcome: list[int]) -> dict[float, float]:
    """Pool adjacent violators, one pair at a time: score → level."""
    blocks = [
        [sum(y for x, y in zip(score, outcome, strict=True) if x == s), score.count(s), [s]] for s in sorted(set(score))
    ]
    at = 0
    while at + 1 < len(blocks):
        if blocks[at][0] * blocks[at + 1][1] > blocks[at + 1][0] * blocks[at][1]:
            right = blocks.pop(at + 1)
            blocks[at] = [blocks[at][0] + right[0], blocks[at][1] + right[1], blocks[at][2] + right[2]]
            at = max(at - 1, 0)
        else:
            at += 1
    return {s: total / count for total, count, members in blocks for s in members}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), min_size=1, max_size=40))
def test_levels_are_those_of_pooling_by_hand(pairs: list[tuple[int, int]]) -> None:
    score, outcome = [s / 20 for s, _ in pairs], [y for _, y in pairs]
    expected = pooled(score, outcome)
    found = np.interp(score, *isotonic_levels(np.array(score), np.array(outcome)))
    np.testing.assert_allclose(found, [expected[s] for s in score], atol=1e-12)


#: Scores between which a slope overflows, and ordinary ones.
SCORES = st.one_of(st.integers(0, 2**40).map(lambda k: k * 5e-324), st.floats(0, 1e-300), st.floats(0, 1))


@given(st.lists(st.tuples(SCORES, st.integers(0, 1)), min_size=1, max_size=20), st.lists(SCORES, min_size=1))
def test_the_curve_between_scores_is_the_exact_line(pairs: list[tuple[float, int]], at: list[float]) -> None:
    score, outcome = (list(side) for side in zip(*pairs, strict=True))
    level = pooled(score, outcome)
    known, expected = sorted(level), []
    for x in at:
        left = max((s for s in known if s <= x), default=known[0])
        right = min((s for s in known if s >= x), default=known[-1])
        share = (Fraction(x) - Fraction(left)) / (Fraction(right) - Fraction(left)) if left < right else Fraction(0)
        expected.append(float(Fraction(level[left]) * (1 - share) + Fraction(level[right]) * share))
    found = interpolated(np.array(at), *isotonic_levels(np.array(score), np.array(outcome)))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(st.integers(0, 10_000), st.integers(2, 200))
def test_the_parts_add_up_and_are_not_negative(seed: int, samples: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = rng.random(samples)
    outcome = (rng.random(samples) < confidence**2).astype(float)
    found = decomposition(confidence, outcome)
    assert found.score == pytest.approx(found.miscalibration - found.discrimination + found.uncertainty)
    assert found.miscalibration >= -1e-12 and found.discrimination >= -1e-12
    assert found.uncertainty == pytest.approx(outcome.mean() * (1 - outcome.mean()))


def test_a_constant_confidence_has_no_discrimination_and_the_plain_gap_as_miscalibration() -> None:
    found = decomposition(np.full(100, 0.9), np.r_[np.ones(60), np.zeros(40)])
    assert found.discrimination == pytest.approx(0) and found.miscalibration == pytest.approx(0.3**2)


def test_scikit_learns_regression_gives_the_same_score() -> None:
    from sklearn.isotonic import IsotonicRegression

    rng = np.random.default_rng(0)
    confidence = rng.random(500).round(2)
    outcome = (rng.random(500) < confidence).astype(float)
    fitted = IsotonicRegression().fit(confidence, outcome).predict(confidence)
    found = decomposition(confidence, outcome)
    assert found.score - found.miscalibration == pytest.approx(((fitted - outcome) ** 2).mean())


@pytest.mark.slow
def test_the_band_holds_the_curve_of_a_calibrated_confidence_as_often_as_it_says() -> None:
    rng, inside = np.random.default_rng(1), []
    confidence = rng.beta(4, 1, 300)
    band = consistency_band(confidence, repetitions=1000)
    for _ in range(1000):
        levels = isotonic_levels(confidence, rng.random(300) < confidence)
        curve = np.interp(band.confidence, *levels)
        inside.append(np.mean((band.lower <= curve) & (curve <= band.upper)))
    assert 0.89 <= np.mean(inside) <= 0.95, "levels at the ends are often exactly 0 or 1, and held more often"


def test_networks_that_see_the_same_samples_have_a_wider_band_than_independent_ones() -> None:
    rng = np.random.default_rng(2)
    one = rng.beta(4, 1, 400)
    three, same = np.tile(one, 3), np.tile(np.arange(400), 3)
    alone, apart, together = (consistency_band(*given) for given in ((one,), (three,), (three, same)))
    width = [float((band.upper - band.lower).mean()) for band in (alone, apart, together)]
    assert width[1] < 0.75 * width[0] and width[2] == pytest.approx(width[0], rel=0.15)


def bins_outside(confidence: np.ndarray, correct: np.ndarray, bins: int = 10) -> np.ndarray:
    """Return whether each bin's accuracy lies outside of its bar, for bins with samples."""
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    rows = [row for row in reliability_bins(probabilities, 1 - correct, bins) if row["n"]]
    low, high = consistency_bars([row["confidence"] for row in rows], [row["n"] for row in rows])
    accuracy = np.array([row["accuracy"] for row in rows])
    return (accuracy < low - 1e-12) | (accuracy > high + 1e-12)


def test_one_bin_in_twenty_of_a_calibrated_network_lies_outside_its_bar_and_most_of_another() -> None:
    rng = np.random.default_rng(4)
    calibrated, overconfident = [], []
    for _ in range(400):
        p = rng.uniform(0.5, 1, 2000)
        calibrated.extend(bins_outside(p, (rng.random(2000) < p).astype(int)))
        overconfident.extend(bins_outside(p, (rng.random(2000) < p - 0.1).astype(int)))
    assert 0.03 <= np.mean(calibrated) <= 0.05, "quantiles of counts hold a little more than 95 %"
    assert np.mean(overconfident) > 0.95


def test_bars_are_the_quantiles_of_resampled_bins() -> None:
    rng = np.random.default_rng(5)
    p = rng.uniform(0.8, 0.9, 150)
    drawn = (rng.random((20_000, 150)) < p).mean(1)
    low, high = consistency_bars([p.mean()], [150])
    np.testing.assert_allclose([low[0], high[0]], np.quantile(drawn, [0.025, 0.975]), atol=1.5 / 150)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_bars_are_scipys_quantiles(level: float) -> None:
    rng = np.random.default_rng(6)
    n = np.concatenate([rng.integers(1, 20, 3000), rng.integers(1, 5000, 3000)]).astype(float)
    p = np.where(rng.random(6000) < 0.5, rng.random(6000), 10 ** -rng.uniform(0, 15, 6000))
    p = np.where(rng.random(6000) < 0.5, p, 1 - p)
    p[::10] = rng.integers(0, 11, 600) / 10
    for bar, q in zip(consistency_bars(p, n, level), ((1 - level) / 2, (1 + level) / 2), strict=True):
        np.testing.assert_array_equal(bar, binom.ppf(q, n, p) / n)

"""Isotonic regression and histogram binning of each class against scikit-learn, netcal and plain loops.

Venn–Abers against refitting with each sample added and the calibration that it promises.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainables.predictions import drawn_predictions
from trainables.metrics.base import softmax64
from trainables.posthoc import fit
from trainables.posthoc.one_vs_rest import brackets, levels_of


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("different", [200, 30])
def test_isotonic_regression_of_each_class_is_scikit_learns(seed: int, different: int) -> None:
    from sklearn.isotonic import IsotonicRegression

    logits, targets = drawn_predictions(seed, 200, 4, 2)
    unseen, _ = drawn_predictions(seed + 100, 150, 4, 2)
    logits = logits[np.arange(200) % different]
    columns = [
        IsotonicRegression(out_of_bounds="clip").fit(softmax64(logits)[:, k], targets == k).predict(
            softmax64(unseen)[:, k]
        )
        for k in range(4)
    ]  # fmt: skip
    expected = np.stack(columns, axis=1)
    total = expected.sum(axis=1, keepdims=True)
    expected = np.where(total > 0, expected / np.where(total > 0, total, 1), 0.25)
    np.testing.assert_allclose(fit("isotonic", logits, targets, mix=False)(unseen), expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_isotonic_regression_is_netcals(seed: int) -> None:
    binning = pytest.importorskip("netcal.binning")
    logits, targets = drawn_predictions(seed, 300, 3, 2)
    oracle = binning.IsotonicRegression()
    oracle.fit(softmax64(logits), targets)
    found = fit("isotonic", logits, targets, mix=False)(logits)
    np.testing.assert_allclose(found, oracle.transform(softmax64(logits)), atol=1e-6)


def test_isotonic_regression_takes_scores_that_rounding_alone_tells_apart_as_equal() -> None:
    """A forest's shares of trees, whose logarithms were normalised on the way."""
    from sklearn.isotonic import IsotonicRegression

    random = np.random.default_rng(0)
    probabilities = random.multinomial(20, [0.6, 0.3, 0.1], 500) / 20 * 0.94 + 0.02
    targets = (random.random((500, 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
    logits = np.log(probabilities) + random.normal(size=(500, 1))
    assert len(np.unique(softmax64(logits)[:, 1])) > 2 * len(np.unique(probabilities[:, 1]))
    columns = [IsotonicRegression().fit(of, targets == k).predict(of) for k, of in enumerate(probabilities.T)]
    expected = np.stack(columns, axis=1)
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(fit("isotonic", logits, targets, mix=False)(logits), expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_histogram_binning_is_netcals(seed: int) -> None:
    binning = pytest.importorskip("netcal.binning")
    logits, targets = drawn_predictions(seed, 2000, 3, 1)
    oracle = binning.HistogramBinning(10)
    oracle.fit(softmax64(logits), targets)
    found = fit("histogram_binning", logits, targets, bins=10, mix=False)(logits)
    np.testing.assert_allclose(found, oracle.transform(softmax64(logits)), atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scheme", ["equal_width", "equal_mass"])
def test_histogram_binning_equals_a_plain_loop(seed: int, scheme: str) -> None:
    logits, targets = drawn_predictions(seed, 120, 3, 2)
    probabilities, bins = softmax64(logits), 6
    expected = np.empty_like(probabilities)
    for k in range(3):
        if scheme == "equal_mass":
            groups = np.array_split(np.argsort(probabilities[:, k], kind="stable"), bins)
        else:
            index = np.ceil(probabilities[:, k] * bins) - 1
            groups = [np.flatnonzero(index == b) for b in range(bins)]
        for group in groups:
            if len(group):
                expected[group, k] = np.mean(targets[group] == k)
    expected /= expected.sum(axis=1, keepdims=True)
    found = fit("histogram_binning", logits, targets, bins=bins, scheme=scheme, mix=False)
    np.testing.assert_allclose(found(logits), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["isotonic", "histogram_binning"])
def test_the_uniform_share_keeps_every_probability_above_zero(name: str) -> None:
    logits, targets = drawn_predictions(0, 99, 4, 6)
    mixed, plain = fit(name, logits, targets), fit(name, logits, targets, mix=False)
    assert plain(logits).min() == 0 and mixed(logits).min() >= 0.01 / 4 - 1e-12
    np.testing.assert_allclose(mixed(logits), 0.99 * plain(logits) + 0.01 / 4)
    assert (mixed.parameters["uniform"], plain.parameters["uniform"]) == (0.01, 0)


@pytest.mark.parametrize("name", ["isotonic", "histogram_binning"])
def test_a_class_without_a_sample_is_flagged(name: str) -> None:
    logits, targets = drawn_predictions(0, 300, 4, 3)
    assert fit(name, logits, targets).parameters["at_bound"] == 0
    assert fit(name, logits[targets < 3], targets[targets < 3]).parameters["at_bound"] == 1


def added(known, outcome, level, label):
    """The isotonic regression's value at a sample that joined with this label."""
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression().fit([*known, level], [*outcome, label])
    return fitted.predict([level])[0]


@pytest.mark.parametrize("seed", range(4))
def test_brackets_are_those_of_refitting_with_each_new_sample(seed):
    logits, targets = drawn_predictions(seed, 60, 3, 2)
    unseen, _ = drawn_predictions(seed + 50, 25, 3, 2)
    calibrator = fit("venn_abers", logits, targets, resolution=0.5)
    low, high = calibrator.brackets(softmax64(unseen))
    known, new = levels_of(softmax64(logits), 0.5), levels_of(softmax64(unseen), 0.5)
    for k in range(3):
        wanted = np.array([[added(known[:, k], targets == k, level, label) for label in (0, 1)] for level in new[:, k]])
        np.testing.assert_allclose(np.stack([low[:, k], high[:, k]], axis=1), wanted, atol=1e-12)
    merged = high / (1 - low + high)
    np.testing.assert_allclose(calibrator(unseen), merged / merged.sum(1, keepdims=True), atol=1e-12)
    assert (low < high).all() and (calibrator(unseen) > 0).all()


def test_one_of_the_two_is_calibrated_whatever_the_scores():
    """p^y, y the label that comes true, has mean y: over 1,000 calibration sets, with scores that say little."""
    rng, gaps = np.random.default_rng(0), []
    for _ in range(1000):
        score = np.rint(rng.normal(size=21) * 3)
        outcome = rng.random(21) < 1 / (1 + np.exp(-0.3 * score + 0.5))
        known, low, high = brackets(score[:-1], outcome[:-1])
        low_at = np.append(0.0, low)[np.searchsorted(known, score[-1], side="right")]
        high_at = np.append(high, 1.0)[np.searchsorted(known, score[-1], side="left")]
        gaps.append(outcome[-1] - (high_at if outcome[-1] else low_at))
    assert abs(np.mean(gaps)) < 4 * np.std(gaps) / 1000**0.5

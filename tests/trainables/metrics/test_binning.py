"""Tied samples are in several equal-mass bins: every value is the mean over their order, whatever the file."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from tests.trainables import reference_metrics as reference
from trainables.losses.adafocal import bin_gaps
from trainables.metrics import METRICS, evaluate_probabilities, softmax64
from trainables.metrics.base import always_measured
from trainables.metrics.binning import binning_of, calibration_error, mean_of_ties
from trainables.metrics.debiased import debiased_squared_error
from trainables.metrics.evaluate import BINNED, _resampled
from trainables.metrics.weighted import weighted_metrics
from trainables.posthoc import POSTHOC, PosthocUnavailable, fit
from trainables.posthoc.focal_temperature import focal_grid
from trainables.posthoc.metacal import threshold_for_accuracy

#: Ten leaves of a tree: their logits, of which each sample has one.
LEAVES = np.random.default_rng(0).normal(size=(10, 3)) * 2


@st.composite
def tied_predictions(draw, samples=40):
    """Logits of a few leaves [N, 3], targets [N], and an order of the samples."""
    leaves, seed = draw(st.integers(1, 10)), draw(st.integers(0, 10**6))
    random = np.random.default_rng(seed)
    logits, targets = LEAVES[random.integers(0, leaves, samples)], random.integers(0, 3, samples)
    targets[:3] = [0, 1, 2]
    return logits, targets, random.permutation(samples)


def by_label(share, samples=1000):
    """Return outcomes sorted by label, of which `share` are 1."""
    return (np.arange(samples) < round(share * samples)).astype(float)


def test_a_constant_confidence_has_the_error_of_its_mean_in_any_order():
    outcome = by_label(0.6)
    for given_order in (outcome, outcome[::-1], np.random.default_rng(0).permutation(outcome)):
        assert calibration_error(np.full(1000, 0.7), given_order, 15, "equal_mass") == pytest.approx(0.1)


def test_a_calibrated_tree_has_no_error_if_its_file_is_sorted_by_label():
    values = np.repeat([0.55, 0.65, 0.75, 0.85, 0.95], 200)
    correct = np.concatenate([by_label(c, 200) for c in values[::200]])
    file_order = np.argsort(correct, kind="stable")
    probabilities = np.stack([values, 1 - values], 1)[file_order]
    found = evaluate_probabilities(probabilities, (1 - correct[file_order]).astype(int))
    assert found["ada_ece"] == pytest.approx(0, abs=1e-12) and found["cw_ada_ece"] == pytest.approx(0, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=2, max_size=6), st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_sums_of_bins_are_the_means_over_all_orders(pairs, bins):
    score, outcome = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    sums = []
    for order in itertools.permutations(range(len(score))):
        places = np.array(order)[np.argsort(score[[*order]], kind="stable")]
        sums.append([outcome[group].sum() for group in np.array_split(places, bins)])
    binning = binning_of(score, bins, "equal_mass")
    np.testing.assert_allclose(binning.sums(outcome), np.mean(sums, axis=0), atol=1e-12)
    sizes = [len(group) for group in np.array_split(score, bins)]
    np.testing.assert_allclose(binning.counts()[0], sizes, atol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_means_of_ties_are_those_of_their_groups_in_each_row(seed, samples):
    random = np.random.default_rng(seed)
    ascending = np.sort(random.integers(0, 8, (3, samples)) / 8, axis=1)
    values = random.random((3, samples))
    expected = [
        [reference.mean_of_tied(c, y, i) for i in range(samples)] for c, y in zip(ascending, values, strict=True)
    ]
    np.testing.assert_allclose(mean_of_ties(ascending, values), expected, atol=1e-12)


def test_scores_without_ties_keep_every_bit():
    random = np.random.default_rng(0)
    confidence, outcome = random.random(500), random.integers(0, 2, 500).astype(float)
    binning = binning_of(confidence, 15, "equal_mass")
    groups = np.array_split(np.argsort(confidence), 15)
    expected = [np.bincount([0] * len(g), weights=(confidence - outcome)[np.sort(g)])[0] for g in groups]
    assert binning.membership is None and binning.sums(confidence - outcome).tolist() == expected
    assert mean_of_ties(np.sort(confidence), outcome).tolist() == outcome.tolist()


def in_order(name, logits, targets, order):
    """Return the metric of the samples in this order."""
    return METRICS.build(name, softmax64(logits[order]), targets[order])


def dependent(measure, samples=60):
    """Whether a value depends on the order of samples without ties, because it draws or divides them."""
    random = np.random.default_rng(1)
    targets = random.integers(0, 3, samples)
    logits = random.normal(size=(samples, 3)) + 2 * np.eye(3)[targets]
    first, second = (measure(logits, targets, order) for order in (np.arange(samples), random.permutation(samples)))
    return not np.allclose(first, second, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", sorted(set(METRICS) - set(always_measured())))
def test_ties_add_no_dependence_on_the_order_of_the_file(name):
    def measure(logits, targets, order):
        return in_order(name, logits, targets, order)

    if dependent(measure):
        pytest.skip("it draws samples by their place")

    @given(tied_predictions())
    @settings(deadline=None, max_examples=8)
    def check(case):
        logits, targets, order = case
        found, again = in_order(name, logits, targets, slice(None)), in_order(name, logits, targets, order)
        assert again == pytest.approx(found, abs=1e-9, nan_ok=True)

    check()


@given(tied_predictions(), st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_what_every_evaluation_measures_does_not_depend_on_the_order_of_the_file(case, seed):
    logits, targets, order = case
    probabilities, weights = softmax64(logits), np.random.default_rng(seed).random(len(targets)) + 0.1
    found, again = (evaluate_probabilities(probabilities[o], targets[o]) for o in (slice(None), order))
    assert again == pytest.approx(found, abs=1e-12, nan_ok=True)
    found, again = (weighted_metrics(weights[o], probabilities[o], targets[o]) for o in (slice(None), order))
    assert again == pytest.approx(found, abs=1e-12)
    counts = np.random.default_rng(seed).integers(0, 3, (len(targets), 4)).astype(float)
    found, again = (
        _resampled([*BINNED], probabilities[None, o], targets[o], counts[o], 15) for o in (slice(None), order)
    )
    for name in BINNED:
        np.testing.assert_allclose(again[name], found[name], atol=1e-12)
    confidence, right = torch.tensor(probabilities.max(1)), torch.tensor(probabilities.argmax(1) == targets).double()
    for found, again in zip(
        bin_gaps(confidence, right, 15), bin_gaps(confidence[order], right[order], 15), strict=True
    ):
        torch.testing.assert_close(again, found)
    grid = np.array([0.0, 1.0]), np.array([0.5, 1.0])
    found, again = (focal_grid(logits[o], targets[o], *grid).ada_ece for o in (slice(None), order))
    np.testing.assert_allclose(again, found, atol=1e-12)
    uncertainty, correct = 1 - probabilities.max(1), right.numpy()
    found, again = (
        threshold_for_accuracy(uncertainty[o], correct[o], 1e-3 + correct.mean() / 2) for o in (slice(None), order)
    )
    assert again == pytest.approx(found, abs=1e-12)


FITS = [
    (name, options)
    for name, method in sorted(POSTHOC.items())
    for options in ({}, {"scheme": "equal_mass"}, {"scheme": "equal_mass", "objective": "ece"})
    if set(options) <= {h.name for h in method.hyperparameters}
]


@pytest.mark.parametrize(("name", "options"), FITS)
def test_no_method_depends_on_the_order_of_tied_samples(name, options):

    def measure(logits, targets, order):
        try:
            return fit(name, logits[order], targets[order], **options)(LEAVES)
        except PosthocUnavailable:
            return np.nan

    if dependent(measure):
        pytest.skip("it draws samples by their place")
    for seed in range(3):
        random = np.random.default_rng(seed)
        logits, targets = LEAVES[random.integers(0, 4, 60)], np.arange(60) % 3
        found, again = (measure(logits, targets, order) for order in (np.arange(60), np.argsort(targets)))
        np.testing.assert_allclose(again, found, atol=1e-6)


def test_the_debiased_error_of_tied_samples_is_right_on_average():
    random = np.random.default_rng(0)
    confidence = np.repeat([0.6, 0.9], [130, 70])
    drawn = [debiased_squared_error(confidence, (random.random(200) < confidence - 0.1) * 1.0) for _ in range(2000)]
    assert np.mean(drawn) == pytest.approx(0.01, abs=4 * np.std(drawn) / 2000**0.5)


def test_the_bias_is_that_of_errors_whose_ties_are_shared():
    random = np.random.default_rng(0)
    probabilities = np.tile([0.7, 0.3], (300, 1))
    found = METRICS.build("ece_bias", probabilities, np.zeros(300, dtype=int), scheme="equal_mass", repetitions=400)
    drawn = [
        calibration_error(probabilities[:, 0], (random.random(300) < 0.7) * 1.0, 15, "equal_mass") for _ in range(400)
    ]
    assert found == pytest.approx(np.mean(drawn), rel=0.15)

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.trainables import reference_metrics as reference
from trainables.metrics import METRIC_NAMES, evaluate_probabilities, reliability_bins, softmax64
from trainables.metrics.base import UnusablePredictions, log_softmax64
from trainables.metrics.binning import equal_width_bin, mean_of_ties
from trainables.metrics.evaluate import evaluate_networks
from trainables.metrics.out_of_distribution import rank_weights


@pytest.mark.parametrize("seed", range(60))
def test_every_metric_agrees_with_its_plain_definition(seed):
    bins = (1, 5, 10, 15)[seed % 4]
    probabilities, targets = reference.random_case(seed)
    found = evaluate_probabilities(probabilities, targets, bins)
    assert tuple(found) == METRIC_NAMES
    plain = reference.evaluate(probabilities, targets, bins)
    assert {name: found[name] for name in plain} == pytest.approx(plain, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("seed", range(20))
def test_networks_together_are_each_one_alone_to_the_last_bit(seed):
    random = np.random.default_rng(seed)
    networks, samples, classes = random.integers(1, 7), random.integers(15, 1200), random.integers(2, 12)
    scale = random.choice([0.1, 1, 30, 2000], size=(networks, 1, 1))  # the last one underflows
    logits = random.normal(size=(networks, samples, classes)) * scale
    logits = np.round(logits) if seed % 2 else logits
    targets = random.integers(0, classes, samples)
    together = evaluate_networks(softmax64(logits), targets, 15, logits=logits)
    alone = [evaluate_probabilities(softmax64(own), targets, 15, logits=own) for own in logits]
    assert repr(together) == repr(alone)


@pytest.mark.parametrize("seed", range(20))
def test_tied_confidences_share_their_weight(seed):
    random = np.random.default_rng(seed)
    confidence = random.integers(0, 6, 40) / 6
    loss = random.random(40)
    expected = reference.risk_coverage_area(confidence, loss)
    for order in (np.argsort(confidence, kind="stable"), np.lexsort([random.random(40), confidence])):
        found = rank_weights(40) @ mean_of_ties(confidence[order], loss[order]) / 40
        assert found == pytest.approx(expected, abs=1e-13), "whichever of the tied comes first"


def test_rank_weights_are_digamma_differences_of_mean_one():
    from scipy.special import digamma

    for samples in (1, 2, 7, 1000):
        ranks = np.arange(1, samples + 1)
        expected = digamma(samples + 1) - digamma(samples - ranks + 1)
        np.testing.assert_allclose(rank_weights(samples), expected, rtol=1e-9)
        assert rank_weights(samples).mean() == pytest.approx(1.0, abs=1e-12)


def test_no_wrong_samples_leaves_their_metrics_undefined():
    found = evaluate_probabilities(np.tile([0.7, 0.3], (20, 1)), np.zeros(20, dtype=int))
    undefined = {name for name, value in found.items() if math.isnan(value)}
    assert undefined == {"nll_wrong", "s99_accuracy", "confidence_wrong", "entropy_wrong"}
    assert found["aurc"] == found["e_aurc"] == 0.0
    assert found["top5"] == 1.0


def test_the_nll_of_logits_has_no_limit_and_other_samples_keep_their_bits():
    random = np.random.default_rng(0)
    logits, targets = random.normal(0, 3, (200, 5)), random.integers(0, 5, 200)
    plain = evaluate_probabilities(softmax64(logits), targets)
    assert evaluate_probabilities(softmax64(logits), targets, logits=logits) == plain
    logits[0] = [1e4, 0, 0, 0, 0]
    targets[0] = 1
    capped = evaluate_probabilities(softmax64(logits), targets)
    found = evaluate_probabilities(softmax64(logits), targets, logits=logits)
    exact = -(logits - np.logaddexp.reduce(logits, axis=1)[:, None])[np.arange(200), targets]
    assert found["nll"] == pytest.approx(exact.mean(), rel=1e-12) and capped["nll"] < found["nll"] - 40
    changed = {name for name in found if found[name] != capped[name] and found[name] == found[name]}
    assert changed == {"nll", "nll_wrong"}


def test_ties_go_to_the_first_class_for_accuracy_and_top5():
    probabilities = np.full((18, 6), 1 / 6)
    assert evaluate_probabilities(probabilities, np.zeros(18, dtype=int))["accuracy"] == 1.0
    assert evaluate_probabilities(probabilities, np.full(18, 4))["top5"] == 1.0
    assert evaluate_probabilities(probabilities, np.full(18, 5))["top5"] == 0.0


def test_edges_belong_to_the_bin_they_close():
    values = np.array([0.0, 0.2, 0.20000001, 0.4, 1.0, 1.0 + 2e-16])
    assert equal_width_bin(values, 5).tolist() == [0, 0, 1, 1, 4, 4]
    edges = np.linspace(0, 1, 16)
    assert equal_width_bin(edges, 15).tolist() == [0, *range(15)]


def test_reliability_rows_add_up_to_the_metrics():
    probabilities, targets = reference.random_case(3, samples=80, classes=4)
    rows = reliability_bins(probabilities, targets, 10)
    found = evaluate_probabilities(probabilities, targets, 10)
    filled = [row for row in rows if row["n"]]
    assert [row["bin"] for row in rows] == list(range(10))
    assert sum(row["n"] for row in rows) == 80
    assert sum(row["n"] * row["accuracy"] for row in filled) / 80 == pytest.approx(found["accuracy"])
    assert sum(row["n"] * abs(row["accuracy"] - row["confidence"]) for row in filled) / 80 == pytest.approx(
        found["ece"]
    )
    assert max(abs(row["accuracy"] - row["confidence"]) for row in filled) == pytest.approx(found["mce"])
    assert all(row["lower"] < row["confidence"] <= row["upper"] for row in filled)
    empty = [row for row in rows if not row["n"]]
    assert empty
    assert all(row["accuracy"] is None and row["confidence"] is None for row in empty)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0.01, 30))
def test_metrics_do_not_depend_on_the_order_of_samples_and_stay_in_range(seed, classes, scale):
    probabilities, targets = reference.random_case(seed, classes=classes, scale=scale)
    found = evaluate_probabilities(probabilities, targets, 10)
    shuffled = np.random.default_rng(seed).permutation(len(targets))
    again = evaluate_probabilities(probabilities[shuffled], targets[shuffled], 10)
    assert again == pytest.approx(found, abs=1e-9, nan_ok=True)
    for name in ("accuracy", "top5", "ece", "ada_ece", "mce", "cw_ece", "cw_ada_ece", "aurc", "s99", "confidence"):
        assert 0.0 <= found[name] <= 1.0
    assert 0.0 <= found["brier"] <= 2.0
    assert -1e-12 <= found["e_aurc"] <= found["aurc"]
    assert found["ece"] <= found["mce"] + 1e-12


def test_softmax_is_float64_and_survives_any_finite_logits():
    values = softmax64(np.array([[1e4, 0.0], [3e38, -3e38]], dtype=np.float32))
    assert values.dtype == np.float64
    assert values.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    near = np.array([[20.0, 0.0], [19.9, 0.0]], dtype=np.float32)
    assert softmax64(near)[0, 0] != softmax64(near)[1, 0]
    np.testing.assert_allclose(np.exp(log_softmax64(near)), softmax64(near), rtol=1e-14)


@pytest.mark.parametrize(
    ("probabilities", "targets", "bins", "sentence"),
    [
        (np.full((20, 2), np.nan), np.zeros(20, dtype=int), 15, r"nan \(sample 0, class 0; 20 of 20 samples\)"),
        (np.full((20, 2), 0.5), np.full(20, 2), 15, r"target 2 \(sample 0; 20 in all\) is outside \[0, 2\)"),
        (np.full((20, 2), 0.5), np.full(20, -1), 15, r"target -1 .* outside \[0, 2\)"),
        (np.full((8, 2), 0.5), np.zeros(8, dtype=int), 15, "8 samples are fewer than 15 bins: use at most 8 bins"),
        (np.full((20, 2), 0.5), np.zeros(20, dtype=int), 0, "bins = 0 must be at least 1"),
        (np.full((20, 2), 0.6), np.zeros(20, dtype=int), 15, "sum to 1.2"),
        (np.full((20, 2), -3.0), np.zeros(20, dtype=int), 15, "pass softmax outputs, not logits"),
        (np.full((20, 1), 1.0), np.zeros(20, dtype=int), 15, "at least two classes"),
        (np.full(20, 0.5), np.zeros(20, dtype=int), 15, r"of shape \(20,\)"),
        (np.full((20, 2), 0.5), np.zeros(19, dtype=int), 15, "one class index for each of 20 samples"),
        (np.full((20, 2), 0.5), np.zeros(20), 15, "whole numbers"),
    ],
)
def test_unusable_input_is_named(probabilities, targets, bins, sentence):
    with pytest.raises(UnusablePredictions, match=sentence):
        evaluate_probabilities(probabilities, targets, bins)
    with pytest.raises(UnusablePredictions, match=sentence):
        reliability_bins(probabilities, targets, bins)


def test_all_faults_are_named_at_once():
    with pytest.raises(UnusablePredictions, match=r"inf.*target 7.*fewer than 15 bins"):
        evaluate_probabilities(np.full((4, 2), np.inf), np.full(4, 7), 15)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 10])
def test_selectives_bounds_of_calibration_errors_hold(seed, classes):
    """Selective Lemma 4.1, Props 4.2 to 4.5 (ρ = 1); the supremum over binnings has a bin for each sample.

    The other half of Lemma 4.1 and Prop. 4.3, that the population's error is no less than that supremum, is false: at
    true probabilities it is 0.
    """
    random = np.random.default_rng(seed)
    probabilities = softmax64(random.normal(0, 3, (400, classes)))
    targets = np.where(random.random(400) < 0.6, probabilities.argmax(1), random.integers(0, classes, 400))
    found = evaluate_probabilities(probabilities, targets)
    error, correct = 1 - found["accuracy"], probabilities.argmax(1) == targets
    largest_ece = np.abs(correct - probabilities.max(1)).mean()
    largest_cw_ece = np.abs(np.eye(classes)[targets] - probabilities).sum(1).mean() / classes
    assert found["ece"] <= largest_ece + 1e-12 and found["cw_ece"] <= largest_cw_ece + 1e-12
    assert largest_ece >= error / classes and largest_cw_ece > error / classes
    mapped = np.where(correct, 1.0, 1 / classes)  # Prop. 4.2: a score that separates right from wrong
    assert np.abs(correct - mapped).mean() == pytest.approx(error / classes)
    upper = math.sqrt(classes * found["brier"])
    assert upper >= classes * largest_cw_ece >= classes * found["cw_ece"] and upper >= found["ece"]
    lowered = probabilities.copy()  # Prop. 4.4; as printed, other components stay, and rows need not sum to 1
    top = probabilities.max(1)
    lowered[np.arange(400), probabilities.argmax(1)] = np.where(correct, 1.0, np.minimum(0.5, top))
    assert np.abs(np.eye(classes)[targets] - lowered).sum(1).mean() / classes <= largest_cw_ece


@pytest.mark.parametrize("order", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_selectives_hierarchy_holds_with_another_factor(order, classes):
    """Selective Prop. 4.5 at probabilities that are all different, so that P(y | f) is the one-hot label.

    As printed, k·cwECE_ρ is a lower bound of CE_ρ; by Defs. 3.5 and 3.7 it is k^(1/ρ)·cwECE_ρ, less for ρ > 1.
    """
    random = np.random.default_rng(0)
    probabilities = softmax64(random.normal(0, 1, (300, classes)))
    apart = np.abs(np.eye(classes)[random.integers(0, classes, 300)] - probabilities)
    whole = (apart**order).sum(1).mean() ** (1 / order)
    of_classes = (apart**order).mean() ** (1 / order)
    brier = (apart**2).sum(1).mean()
    assert classes ** (1 / order - 1 / 2) * math.sqrt(brier) >= whole - 1e-12
    assert whole == pytest.approx(classes ** (1 / order) * of_classes)
    assert (classes * of_classes > whole + 1e-9) == (order > 1)

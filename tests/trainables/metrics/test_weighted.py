"""Weighted metrics against naive loops, scikit-learn, and samples repeated as often as their weights say."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.base import UnusablePredictions
from trainables.metrics.weighted import WEIGHTED_COLUMNS, weighted_metrics


def drawn(seed, classes, samples=60):
    random = np.random.RandomState(seed)
    logits = 2 * random.randn(samples, classes)
    return softmax64(logits), random.randint(classes, size=samples), random.randint(1, 6, samples)


def naive_ece(weights, probabilities, targets, bins):
    total = 0.0
    for b in range(bins):
        inside = []
        for w, p, y in zip(weights, probabilities, targets, strict=True):
            if b / bins < max(p) <= (b + 1) / bins:
                inside.append((w, max(p), float(np.argmax(p) == y)))
        of_bin = sum(w for w, _, _ in inside)
        if of_bin:
            confidence, accuracy = (sum(row[0] * row[k] for row in inside) / of_bin for k in (1, 2))
            total += of_bin / sum(weights) * abs(accuracy - confidence)
    return total


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("classes", [2, 5])
def test_weighted_metrics_are_those_of_scikit_learn_a_loop_and_repeated_samples(seed, classes):
    probabilities, targets, weights = drawn(seed, classes)
    measured = weighted_metrics(weights / 7, probabilities, targets, bins=10)
    assert tuple(measured) == WEIGHTED_COLUMNS
    labels, own = range(classes), {"sample_weight": weights}
    expected = {
        "weighted_accuracy": accuracy_score(targets, probabilities.argmax(1), **own),
        "weighted_nll": log_loss(targets, probabilities, labels=labels, **own),
        "weighted_brier": brier_score_loss(targets, probabilities, labels=labels, scale_by_half=False, **own),
        "weighted_ece": naive_ece(weights, probabilities, targets, 10),
    }
    assert measured == pytest.approx(expected, rel=1e-9)
    rows = np.repeat(np.arange(len(weights)), weights)
    repeated = evaluate_probabilities(probabilities[rows], targets[rows], bins=10)
    assert measured == pytest.approx({name: repeated[name.removeprefix("weighted_")] for name in measured}, rel=1e-9)


def test_an_underflowed_probability_is_measured_from_its_logits_and_no_weights_give_no_columns():
    logits, targets = np.array([[0.0, 2000.0], [0.0, 0.0]]), np.array([0, 0])
    measured = weighted_metrics([1.0, 3.0], softmax64(logits), targets, bins=2, logits=logits)
    assert measured["weighted_nll"] == pytest.approx((2000 + 3 * np.log(2)) / 4)
    assert weighted_metrics(None, softmax64(logits), targets) == {}
    with pytest.raises(UnusablePredictions, match="fewer than 15 bins"):
        weighted_metrics([1.0, 3.0], softmax64(logits), targets)

"""Published figures on two files of real test logits, where SWEEPER_GOLDEN_LOGITS names their folder.

Without it the same functions are held to the plain definitions on generated logits of the same kind.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from tests.trainables import reference_metrics as reference
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.out_of_distribution import optimal_area_under_risk_coverage
from trainables.posthoc import fit

GOLDEN = {
    "cross_entropy": {
        "accuracy": (0.9056, 4),
        "nll": (0.37173747, 8),
        "ece": (0.05622545, 8),
        "mce": (0.21194398, 8),
        "ada_ece": (0.05590272, 8),
        "cw_ece": (0.01364516, 8),
        "brier": (0.15365719, 8),
        "aurc": (0.01635327, 8),
        "temperature": (1.74172, 5),
    },
    "focal": {
        "accuracy": (0.9469, 4),
        "nll": (0.21271617, 8),
        "ece": (0.053566, 6),
        "mce": (0.15208099, 8),
        "ada_ece": (0.05255184, 8),
        "cw_ece": (0.01239384, 8),
        "brier": (0.08505483, 8),
        "aurc": (0.00697419, 8),
        "temperature": (0.734612, 6),
    },
}
FOLDER = os.environ.get("SWEEPER_GOLDEN_LOGITS")


def logits_and_targets(name, samples=400):
    """The file of that name, or generated float32 logits that saturate as real ones do."""
    if FOLDER:
        with np.load(Path(FOLDER) / f"resnet50_cifar10_{name}_test_logits.npz") as data:
            return data["logits"], data["targets"]
    random = np.random.default_rng(len(name))
    targets = random.integers(0, 10, samples)
    logits = random.normal(size=(samples, 10)) * 2
    logits[np.arange(samples), targets] += random.normal(size=samples) * 3 + 9
    return logits.astype(np.float32), targets


@pytest.mark.parametrize("name", GOLDEN)
def test_metrics_and_temperature_on_saturated_float32_logits(name):
    logits, targets = logits_and_targets(name)
    found = evaluate_probabilities(softmax64(logits), targets)
    found["temperature"] = fit("temperature", logits, targets).parameters["temperature"]
    if FOLDER:
        rounded = {metric: (round(found[metric], digits), digits) for metric, (_, digits) in GOLDEN[name].items()}
        assert rounded == GOLDEN[name]
    else:
        expected = reference.evaluate(softmax64(logits), targets)
        assert {k: found[k] for k in expected} == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_least_area_of_the_first_file():
    logits, targets = logits_and_targets("cross_entropy")
    errors = int((logits.argmax(1) != targets).sum())
    least = optimal_area_under_risk_coverage(errors, len(targets))
    if FOLDER:
        assert round(least, 8) == 0.00460762
    loss = np.sort((logits.argmax(1) != targets).astype(float))
    assert least == pytest.approx(reference.risk_coverage_area(-np.arange(len(loss)) / len(loss), loss))


def test_float32_softmax_ties_confidences_that_float64_keeps_apart():
    logits, targets = logits_and_targets("cross_entropy", samples=4000)
    double = softmax64(logits)
    weights = np.exp(logits - logits.max(1, keepdims=True))
    single = weights / weights.sum(1, keepdims=True)
    assert single.dtype == np.float32
    kept, lost = (len(np.unique(p.max(1))) for p in (double, single))
    assert lost < kept - 100
    normalised = single.astype(np.float64) / single.sum(1, dtype=np.float64)[:, None]
    moved = evaluate_probabilities(normalised, targets)["aurc"] - evaluate_probabilities(double, targets)["aurc"]
    assert 0.0 <= abs(moved) < 1e-4

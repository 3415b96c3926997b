import math

import numpy as np
import pytest

from trainables.metrics import softmax64
from trainables.posthoc import PosthocUnavailable, fit
from trainables.posthoc.metacal import entropy, threshold_for_accuracy


def logits_and_targets(seed=0, samples=600, classes=4, strength=3.0):
    random = np.random.default_rng(seed)
    targets = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes)) * 2
    logits[np.arange(samples), targets] += strength * random.random(samples)
    return logits, targets


@pytest.mark.parametrize("method", ["metacal_mis", "metacal_acc"])
def test_rejected_rows_are_uniform_and_accepted_ones_scaled(method):
    logits, targets = logits_and_targets()
    options = {"accuracy": 0.65} if method == "metacal_acc" else {}
    calibrator = fit(method, logits, targets, **options)
    found = calibrator(logits)
    accepted = entropy(logits) < calibrator.parameters["threshold"]
    assert 0 < accepted.sum() < len(targets)
    assert calibrator.parameters["accepted"] == pytest.approx(accepted.mean())
    assert (found[~accepted] == 0.25).all()
    np.testing.assert_allclose(found[accepted], softmax64(logits[accepted] / calibrator.parameters["temperature"]))


def mis_by_definition(logits, targets, seed):
    """The threshold of miscoverage .1 and the temperature of what remains below it."""
    right = [i for i in range(len(targets)) if logits[i].argmax() == targets[i]]
    drawn = np.random.default_rng(seed).choice(right, min(len(right) // 10, 500), replace=False)
    uncertainty = entropy(logits)
    ordered = sorted(uncertainty[drawn])
    threshold = ordered[math.ceil(0.9 * (len(ordered) - 1))]
    rest = [i for i in range(len(targets)) if i not in set(drawn) and uncertainty[i] < threshold]
    return threshold, fit("temperature", logits[rest], targets[rest]).parameters["temperature"]


@pytest.mark.parametrize("seed", range(5))
def test_mis_coverage_follows_its_definition(seed):
    logits, targets = logits_and_targets(seed)
    found = fit("metacal_mis", logits, targets, alpha=0.1, seed=seed).parameters
    assert (found["threshold"], found["temperature"]) == mis_by_definition(logits, targets, seed)


def test_mis_coverage_rejects_about_alpha_of_right_predictions():
    logits, targets = logits_and_targets(samples=20_000)
    threshold = fit("metacal_mis", logits, targets, alpha=0.1).parameters["threshold"]
    fresh, truth = logits_and_targets(seed=1, samples=20_000)
    right = fresh.argmax(1) == truth
    assert (entropy(fresh)[right] >= threshold).mean() == pytest.approx(0.1, abs=0.04)


def isotonic_decreasing(points):
    """Pool adjacent violators on (a, h) sorted by a, equal a averaged; returns the fitted (a, h) pairs."""
    values = {}
    for a, h in points:
        values.setdefault(a, []).append(h)
    blocks = [[[a], sum(hs) / len(hs), len(hs)] for a, hs in sorted(values.items())]
    merged = []
    for block in blocks:
        merged.append(block)
        while len(merged) > 1 and merged[-2][1] < merged[-1][1]:
            last, before = merged.pop(), merged.pop()
            weight = before[2] + last[2]
            mean = (before[1] * before[2] + last[1] * last[2]) / weight
            merged.append([before[0] + last[0], mean, weight])
    return [(a, h) for places, h, _ in merged for a in places]


def accuracy_threshold_by_definition(logits, targets):
    """Our threshold for an accuracy in reach, and that of the definition."""
    uncertainty = entropy(logits)
    correct = (logits.argmax(1) == targets).astype(float)
    groups = np.array_split(np.argsort(uncertainty, kind="stable"), 20)
    accuracies = [correct[g].mean() for g in groups]
    running = [sum(accuracies[: j + 1]) / (j + 1) for j in range(20)]
    fitted = isotonic_decreasing(zip(running, [uncertainty[g].mean() for g in groups], strict=True))
    target = (min(running) + max(running)) / 2
    expected = np.interp(target, [a for a, _ in fitted], [h for _, h in fitted])
    return threshold_for_accuracy(uncertainty, correct, target), expected


@pytest.mark.parametrize("seed", range(8))
def test_coverage_accuracy_threshold_follows_its_definition(seed):
    found, expected = accuracy_threshold_by_definition(*logits_and_targets(seed, samples=407))
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_target_already_met_accepts_everything():
    logits, targets = logits_and_targets()
    calibrator = fit("metacal_acc", logits, targets, accuracy=0.05)
    assert calibrator.parameters["accepted"] == 1.0
    assert np.isfinite(calibrator.parameters["threshold"])
    assert not (calibrator(np.zeros((1, 4))) != 0.25).any()
    scaled = softmax64(logits / calibrator.parameters["temperature"])
    np.testing.assert_allclose(calibrator(logits), scaled, rtol=1e-12)


def test_accepted_predictions_are_about_as_accurate_as_asked():
    logits, targets = logits_and_targets(samples=20_000, strength=10.0)
    threshold = fit("metacal_acc", logits, targets, accuracy=0.93).parameters["threshold"]
    fresh, truth = logits_and_targets(seed=1, samples=20_000, strength=10.0)
    accepted = entropy(fresh) < threshold
    assert 0.1 < accepted.mean() < 0.95
    assert (fresh.argmax(1) == truth)[accepted].mean() == pytest.approx(0.93, abs=0.03)


def test_requests_that_cannot_be_met_are_explained():
    logits, targets = logits_and_targets()
    with pytest.raises(PosthocUnavailable, match=r"accuracy = 0.999 is above 0\.\d+"):
        fit("metacal_acc", *logits_and_targets(strength=0.5), accuracy=0.999)
    with pytest.raises(PosthocUnavailable, match=r"at least 200 validation samples"):
        fit("metacal_acc", logits[:190], targets[:190])
    with pytest.raises(PosthocUnavailable, match="needs at least 10 correct predictions"):
        fit("metacal_mis", logits, (logits.argmax(1) + 1) % 4)
    same = np.tile([2.0, 0.0, 0.0, 0.0], (40, 1))
    with pytest.raises(PosthocUnavailable, match="metacal_mis accepts none of the 38 held-out validation samples"):
        fit("metacal_mis", same, np.arange(40) % 2)
    with pytest.raises(ValueError, match=r"alpha = 1 is outside \(0, 1\)"):
        fit("metacal_mis", logits, targets, alpha=1.0)

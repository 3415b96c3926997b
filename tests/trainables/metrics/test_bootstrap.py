import numpy as np
import pytest

from tests.trainables import reference_metrics as reference
from trainables.metrics import BOOTSTRAPPED, evaluate_probabilities
from trainables.metrics.base import UnusablePredictions
from trainables.metrics.bootstrap import bootstrap_standard_error


def naive(probabilities, targets, name, bins, repetitions, seed):
    """Resample, evaluate, take the spread. Draws ascend in confidence, as equal-mass ties follow the samples' order."""
    order = np.argsort(probabilities.max(1), kind="stable")
    place = np.argsort(order)
    drawn = np.random.default_rng(seed).integers(0, len(targets), size=(repetitions, len(targets)))
    resamples = [order[np.sort(place[d])] for d in drawn]
    return np.std([evaluate_probabilities(probabilities[d], targets[d], bins)[name] for d in resamples], ddof=1)


@pytest.mark.parametrize("seed", range(6))
def test_fast_errors_agree_with_resampling(seed):
    probabilities, targets = reference.random_case(seed, samples=70, classes=4)
    found = bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets, 10, 25, seed)
    assert list(found) == [f"{name}_se" for name in BOOTSTRAPPED]
    for name in BOOTSTRAPPED:
        expected = naive(probabilities, targets, name, 10, 25, seed)
        assert found[f"{name}_se"] == pytest.approx(expected, abs=1e-12)


def degenerate_case(kind, seed):
    """Predictions of 60 samples in which something is missing, certain or tied."""
    probabilities, targets = reference.random_case(seed, samples=60, classes=5)
    if kind == "absent class":
        targets = np.where(targets == 2, 1, targets)
    elif kind == "all right":
        targets = probabilities.argmax(1)
    elif kind == "certain":
        probabilities = np.eye(5)[probabilities.argmax(1)]
    elif kind == "some certain":
        probabilities = np.where(probabilities.max(1, keepdims=True) > 0.6, np.eye(5)[targets], probabilities)
    elif kind == "tied":
        probabilities = probabilities[np.random.default_rng(seed).integers(0, 6, 60)]
    elif kind == "uniform":
        probabilities = np.full((60, 5), 0.2)
    elif kind == "as many samples as bins":
        probabilities, targets = probabilities[:15], targets[:15]
    return probabilities, targets


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "kind", ["absent class", "all right", "certain", "some certain", "tied", "uniform", "as many samples as bins"]
)
def test_fast_errors_agree_with_resampling_in_degenerate_cases(kind, seed):
    probabilities, targets = degenerate_case(kind, seed)
    found = bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets, 15, 12, seed)
    for name in BOOTSTRAPPED:
        expected = naive(probabilities, targets, name, 15, 12, seed)
        assert found[f"{name}_se"] == pytest.approx(expected, abs=1e-12), name


@pytest.mark.parametrize(("samples", "classes"), [(1500, 12), (2**16 + 3, 2)])
def test_fast_errors_agree_with_resampling_of_many_samples(samples, classes):
    """Some of which tie; places of more than 2^16 are sorted as wider numbers."""
    probabilities, targets = reference.random_case(0, samples=samples, classes=classes)
    probabilities[: samples // 3] = probabilities[samples // 3 : 2 * (samples // 3)]
    found = bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets, 15, 3, 1)
    for name in BOOTSTRAPPED:
        assert found[f"{name}_se"] == pytest.approx(naive(probabilities, targets, name, 15, 3, 1), abs=1e-12), name


@pytest.mark.parametrize("limit", ["_BLOCK_ELEMENTS", "_CACHED", "_TOGETHER"])
def test_blocks_of_repetitions_and_classes_change_nothing(monkeypatch, limit):
    probabilities, targets = reference.random_case(1, samples=70, classes=4)
    whole = bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets, repetitions=25)
    monkeypatch.setattr(f"trainables.metrics.bootstrap.{limit}", 70 * 7)
    assert bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets, repetitions=25) == pytest.approx(whole)


@pytest.mark.parametrize("name", BOOTSTRAPPED)
def test_an_error_is_the_same_alone_and_beside_others(name):
    probabilities, targets = reference.random_case(4, samples=70, classes=4)
    together = bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets, repetitions=25)
    assert bootstrap_standard_error(name, probabilities, targets, repetitions=25) == {
        f"{name}_se": together[f"{name}_se"]
    }


def test_class_probabilities_that_tie_are_resampled_as_they_are_measured():
    """Rounded to a tenth, most probabilities of a class are shared by many samples."""
    probabilities, targets = reference.random_case(5, samples=70, classes=3)
    first = np.round(probabilities[:, 0], 1)
    probabilities = np.stack([first, (1 - first) / 2, (1 - first) / 2], axis=1)
    found = bootstrap_standard_error("cw_ada_ece", probabilities, targets, 10, 25, 3)
    assert found["cw_ada_ece_se"] == pytest.approx(naive(probabilities, targets, "cw_ada_ece", 10, 25, 3), abs=1e-12)


def test_other_metrics():
    probabilities, targets = reference.random_case(2, samples=400, classes=4)
    found = bootstrap_standard_error(("accuracy", "ece"), probabilities, targets, repetitions=300)
    right = (probabilities.argmax(1) == targets).astype(float)
    assert found["accuracy_se"] == pytest.approx(right.std() / 20, rel=0.15)
    assert bootstrap_standard_error("ece", probabilities, targets, repetitions=300) == {"ece_se": found["ece_se"]}


def test_error_is_the_spread_over_fresh_samples():
    """The bootstrap's error matches the spread of ECE over independent draws of the same population."""
    random = np.random.default_rng(0)

    def draw():
        first = random.beta(3, 1, 2000)
        targets = (random.random(2000) > np.clip(first - 0.1, 0, 1)).astype(int)
        return np.stack([first, 1 - first], axis=1), targets

    values = [evaluate_probabilities(*draw())["ece"] for _ in range(200)]
    errors = [bootstrap_standard_error("ece", *draw())["ece_se"] for _ in range(10)]
    assert np.mean(errors) == pytest.approx(np.std(values, ddof=1), rel=0.2)


def test_bad_requests():
    probabilities, targets = reference.random_case(2, samples=40, classes=4)
    with pytest.raises(ValueError, match="unknown metric eec; known: accuracy"):
        bootstrap_standard_error(("ece", "eec"), probabilities, targets)
    with pytest.raises(ValueError, match="repetitions = 1 must be at least 2"):
        bootstrap_standard_error("ece", probabilities, targets, repetitions=1)
    with pytest.raises(UnusablePredictions, match="fewer than 15 bins"):
        bootstrap_standard_error("ece", probabilities[:5], targets[:5])

import numpy as np
import pytest

from tests.trainables import reference_metrics as reference
from trainables.metrics import BOOTSTRAPPED, evaluate_probabilities
from trainables.metrics.base import UnusablePredictions
from trainables.metrics.evaluate import bootstrap_standard_error


def shares_of(confidence, bins, name):
    """The share [N, B] of each sample in each bin: (l, u], or that of the places of all samples tied with it."""
    if "ada" not in name:
        index = [max(0, sum(c > edge for edge in np.linspace(0, 1, bins + 1)) - 1) for c in confidence]
        return np.eye(bins)[index]
    groups = np.array_split(np.sort(confidence), bins)
    return np.array([[(group == c).sum() / (confidence == c).sum() for group in groups] for c in confidence])


def one_error(confidence, outcome, shares, name):
    """The binned error of one resample, its bins given."""
    sums, sizes = np.abs((confidence - outcome) @ shares), shares.sum(0)
    return max(sums[sizes > 0] / sizes[sizes > 0]) if name == "mce" else sums.sum() / len(shares)


def naive(probabilities, targets, name, bins, repetitions, seed):
    """Resample, compute the error in the bins of all samples, take the spread."""
    if name.startswith("cw_"):
        pairs = [(p, (targets == k).astype(float)) for k, p in enumerate(probabilities.T)]
    else:
        pairs = [(probabilities.max(1), (probabilities.argmax(1) == targets).astype(float))]
    draws = np.random.default_rng(seed).integers(0, len(targets), size=(repetitions, len(targets)))
    binned = [(confidence, outcome, shares_of(confidence, bins, name)) for confidence, outcome in pairs]
    return np.std([np.mean([one_error(c[d], o[d], i[d], name) for c, o, i in binned]) for d in draws], ddof=1)


@pytest.mark.parametrize("seed", range(4))
def test_errors_agree_with_resampling(seed):
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


@pytest.mark.parametrize(
    "kind", ["absent class", "all right", "certain", "some certain", "tied", "uniform", "as many samples as bins"]
)
def test_errors_agree_with_resampling_in_degenerate_cases(kind):
    probabilities, targets = degenerate_case(kind, 1)
    found = bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets, 15, 12, 1)
    for name in BOOTSTRAPPED:
        expected = naive(probabilities, targets, name, 15, 12, 1)
        assert found[f"{name}_se"] == pytest.approx(expected, abs=1e-12), name


@pytest.mark.parametrize("name", BOOTSTRAPPED)
def test_bins_that_stay_tell_what_new_bins_of_each_resample_do(name):
    """Only equal-mass bins would move; an error of 400 resamples is right to about 4 % itself."""
    probabilities, targets = reference.random_case(0, samples=300, classes=3)
    draws = np.random.default_rng(7).integers(0, 300, size=(400, 300))
    again = [evaluate_probabilities(probabilities[d], targets[d], names=[name])[name] for d in draws]
    found = bootstrap_standard_error(name, probabilities, targets, repetitions=400, seed=0)
    assert found[f"{name}_se"] == pytest.approx(np.std(again, ddof=1), rel=0.15)


@pytest.mark.parametrize("name", BOOTSTRAPPED)
def test_an_error_is_the_same_alone_and_beside_others(name):
    probabilities, targets = reference.random_case(4, samples=70, classes=4)
    together = bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets, repetitions=25)
    assert bootstrap_standard_error(name, probabilities, targets, repetitions=25) == {
        f"{name}_se": together[f"{name}_se"]
    }


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

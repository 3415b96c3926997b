"""Conformal sets against their definition, torch-uncertainty's and MAPIE's, and the coverage that is promised."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.trainables.oracles import oracle
from tests.trainables.reference_metrics import random_case
from trainables.posthoc import PosthocUnavailable
from trainables.posthoc.conformal import SCORES, fit_split, scores, set_measures


def naive_score(name: str, row: np.ndarray, k: int, u: float) -> float:
    if name == "thr":
        return 1 - row[k]
    order = sorted(range(len(row)), key=lambda j: (-row[j], j))
    rank = order.index(k) + 1
    value = sum(row[j] for j in order[:rank]) - u * row[k]
    return value + (0.1 * max(0, rank - 2) if name == "raps" else 0)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_the_definition(name: str, seed: int) -> None:
    probabilities, _ = random_case(seed, samples=20)
    noise = np.random.default_rng(seed).random(20)
    found = scores(name, probabilities, noise, penalty=0.1, free_ranks=2)
    expected = [
        [naive_score(name, row, k, u) for k in range(len(row))] for row, u in zip(probabilities, noise, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_torch_uncertaintys(seed: int) -> None:
    package = oracle("torch_uncertainty.post_processing.conformal")
    probabilities, _ = random_case(seed, samples=40)
    given, none = torch.from_numpy(probabilities), np.zeros(40)
    aps = package.ConformalClsAPS(alpha=0.1, model=None, randomized=False, enable_ts=False)
    raps = package.ConformalClsRAPS(alpha=0.1, model=None, randomized=False, penalty=0.2, regularization_rank=2)
    np.testing.assert_allclose(scores("aps", probabilities, none), aps._calculate_all_labels(given), atol=1e-9)
    found = scores("raps", probabilities, none, penalty=0.2, free_ranks=2)
    np.testing.assert_allclose(found, raps._calculate_all_labels(given), atol=1e-6)


def sets_of_mapie(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Our sets and MAPIE's, which is given the u that we draw, first for validation data and then for unseen ones."""
    import mapie.classification
    from sklearn.utils import check_random_state

    class Given:
        """A fitted classifier whose probabilities are its inputs."""

        classes_ = np.arange(5)
        fitted_ = True

        def fit(self, *_: object) -> Given:
            return self

        def predict(self, rows: np.ndarray) -> np.ndarray:
            return rows.argmax(axis=1)

        def predict_proba(self, rows: np.ndarray) -> np.ndarray:
            return rows

        def __sklearn_is_fitted__(self) -> bool:
            return True

    class OurDraws(np.random.RandomState):
        """u of the sets with seed 0: of validation samples, then of others."""

        ours = np.random.default_rng(0)

        def uniform(self, low: float = 0.0, high: float = 1.0, size: object = None) -> np.ndarray:
            return self.ours.random(np.prod(size)).reshape(size)

    probabilities, targets = random_case(seed, samples=300, classes=5)
    unseen, _ = random_case(seed + 50, samples=200, classes=5)
    draws = check_random_state(OurDraws())
    score = {"thr": "lac"}.get(name, name)
    given = mapie.classification.SplitConformalClassifier(
        Given(), confidence_level=0.9, prefit=True, conformity_score=score, random_state=draws
    )
    given.conformalize(probabilities, targets)
    how = {} if name == "thr" else {"conformity_score_params": {"include_last_label": "randomized"}}
    _, expected = given.predict_set(unseen, **how)
    return fit_split(None, np.log(probabilities), targets).sets(name, np.log(unseen)), expected[:, :, 0]


@pytest.mark.parametrize("name", ["thr", "aps"])
@pytest.mark.parametrize("seed", range(3))
def test_sets_are_mapies(name: str, seed: int) -> None:
    pytest.importorskip("mapie.classification")
    np.testing.assert_array_equal(*sets_of_mapie(name, seed))


def test_a_set_holds_the_classes_up_to_the_quantile_that_counts_the_sample_to_come() -> None:
    """With n = 19 and α = .1 that is the 18th smallest score, and with α = .04 there is none."""
    p = 1 - np.arange(1.0, 20.0) / 40  # of the true class 0: scores .025 to .475
    known, zeros = np.log(np.stack([p, 1 - p], 1)), np.zeros(19, np.int64)
    new = np.log([[1 - 18 / 40 - at, 18 / 40 + at] for at in (-1e-6, 1e-6)])
    fitted = fit_split(None, known, zeros)
    assert fitted.sets("thr", new, alpha=0.1)[:, 0].tolist() == [True, False]
    assert fitted.sets("thr", new, alpha=0.04).all()


def test_a_class_without_enough_samples_is_in_every_set() -> None:
    probabilities, targets = random_case(0, samples=60, classes=3)
    targets = np.where(targets == 2, 0, targets)
    logits = np.log(probabilities)
    assert fit_split(None, logits, targets).sets("thr", logits, by_class=True)[:, 2].all()


def test_measures_of_sets_by_hand() -> None:
    sets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 1]], dtype=bool)
    found = set_measures(sets, np.array([0, 1, 1, 0]))
    assert found == {
        "coverage": 0.5, "size": 1.25, "worst_class_coverage": 0.5, "class_coverage_gap": 0.0, "empty": 0.25
    }  # fmt: skip


def test_an_impossible_share_and_an_unknown_score_are_refused() -> None:
    probabilities, targets = random_case(0, samples=30)
    with pytest.raises(PosthocUnavailable, match="alpha = 1 is outside"):
        fit_split(None, np.log(probabilities), targets).sets("thr", np.log(probabilities), alpha=1)
    with pytest.raises(ValueError, match="known: thr, aps, raps"):
        fit_split(None, np.log(probabilities), targets).sets("threshold", np.log(probabilities))


@pytest.mark.slow
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_the_truth_is_in_the_set_as_often_as_promised(score: str, by_class: bool) -> None:
    """Over 1,000 draws of 200 validation samples and as many others: between 1 − α and 1 − α + 1/(n + 1)."""
    rng, found, each = np.random.default_rng(0), [], []
    for seed in range(1000):
        logits = rng.normal(size=(400, 4)) * 2
        targets = (0.5 * logits + rng.gumbel(size=logits.shape) + [1.0, 0, 0, -0.5]).argmax(axis=1)
        fitted = fit_split(None, logits[:200], targets[:200])
        sets = fitted.sets(score, logits[200:], alpha=0.1, by_class=by_class, seed=seed)
        held = sets[np.arange(200), targets[200:]]
        found.append(held.mean())
        each.append([held[targets[200:] == k].mean() for k in range(4)])
    error = np.std(found) / 1000**0.5
    assert 0.9 - 4 * error <= np.mean(found) <= 0.9 + (0.05 if by_class else 1 / 201) + 4 * error
    if by_class:
        assert (np.nanmean(each, axis=0) >= 0.9 - 4 * np.nanstd(each, axis=0) / 1000**0.5).all()


def drawn(samples: int, random: np.random.Generator, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Over-confident logits: classes are mixed up in pairs, with heavy tails."""
    targets = random.integers(0, classes, samples)
    logits = 1.5 * random.standard_t(3, (samples, classes))
    logits[np.arange(samples), targets] += 5
    logits[np.arange(samples), targets ^ 1] += 2
    return logits, targets


@pytest.mark.parametrize(
    ("method", "crosswise"),
    [
        ("isotonic", False),
        ("isotonic", True),
        *(pytest.param(m, c, marks=pytest.mark.slow) for m in ("temperature", "dirichlet", "matrix") for c in (0, 1)),
    ],
)
def test_sets_after_a_method_cover_although_it_was_fitted(method: str, crosswise: bool) -> None:
    """Fitted on the same 360 samples, thresholds cover .81 to .85 after matrix, dirichlet and isotonic."""
    covered = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        logits, targets = drawn(360, random)
        new, truth = drawn(4000, random)
        sets = fit_split(method, logits, targets, crosswise=crosswise, seed=seed).sets("thr", new, seed=seed)
        covered.append(set_measures(sets, truth)["coverage"])
    # one data set's coverage has a standard deviation of .022 (beta, n = 180) or .016 about its mean of .9
    assert np.mean(covered) >= 0.9 - 3 * 0.022 / 8**0.5


def test_crosswise_sets_are_those_of_the_definition() -> None:
    logits, targets = drawn(60, np.random.default_rng(2), classes=4)
    new, _ = drawn(20, np.random.default_rng(3), classes=4)
    found = fit_split("temperature", logits, targets, crosswise=True)
    own = np.array([1 - found.probabilities[i, targets[i]] for i in range(60)])
    strange = [1 - calibrator(new) for calibrator in found.calibrators]
    sets = found.sets("thr", new, alpha=0.2)
    for x in range(20):
        for k in range(4):
            less = sum(own[i] < strange[found.fold[i]][x, k] - 1e-12 for i in range(60))
            assert sets[x, k] == (less < 0.8 * 61)

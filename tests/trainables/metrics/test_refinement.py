"""Refinement agrees with a plain double loop, with probmetrics, and adds up with calibration to the score."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from tests.trainables.predictions import drawn_predictions
from trainables.metrics import evaluate_probabilities, softmax64
from trainables.metrics.refinement import (
    FOLDS,
    REFINEMENT_COLUMNS,
    folds_of,
    refinement,
    refinement_columns,
    refinements,
)
from trainables.posthoc import fit

PROBMETRICS = {(360, 10, 5.0): (1.252702722, 0.581025501), (100, 3, 2.0): (0.945921043, 0.578750053)}
"""(samples, classes, scale) → logloss and Brier score of probmetrics 1.3.0's calibrator `ts-mix` on the same folds."""


def naive(logits: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """Fit each fold by the post-hoc method, mix with the uniform distribution, and sum sample by sample."""
    fold, nll, brier = folds_of(targets), [], []
    for each in range(FOLDS):
        fitted_on = int((fold != each).sum())
        calibrated = fit("temperature", logits[fold != each], targets[fold != each])(logits[fold == each])
        uniform = 1 / (fitted_on + 1)
        for row, label in zip(calibrated, targets[fold == each], strict=True):
            mixed = [(1 - uniform) * p + uniform / len(row) for p in row]
            nll.append(-math.log(mixed[label]))
            brier.append(sum((p - (k == label)) ** 2 for k, p in enumerate(mixed)))
    return math.fsum(nll) / len(nll), math.fsum(brier) / len(brier)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("samples", "classes", "scale"), [(60, 3, 2), (360, 10, 5), (2500, 4, 1), (3000, 30, 3), (4000, 50, 0.3)]
)
def test_equals_a_plain_loop(samples, classes, scale, seed):
    logits, targets = drawn_predictions(seed, samples, classes, scale)
    found, expected = refinement(logits, targets), naive(logits, targets)
    assert (found.nll, found.brier) == pytest.approx(expected, abs=2e-7)


def drawn_case(kind: str, seed: int, samples: int, classes: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw predictions of a kind that a search may stumble over."""
    logits, targets = drawn_predictions(seed, samples, classes, scale)
    if kind == "all right":
        targets = logits.argmax(1)
    elif kind == "all but one right":
        targets = np.where(np.arange(samples) == seed, logits.argmin(1), logits.argmax(1))
    elif kind == "all wrong":
        targets = logits.argmin(1)
    elif kind == "absent class":
        targets = np.where(targets == 1, 0, targets)
    elif kind == "tied":
        logits = np.round(logits / scale) * scale
    elif kind == "equal logits":
        logits = np.zeros_like(logits)
    return logits, targets


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("samples", "classes"), [(20, 2), (300, 10), (2500, 4), (8000, 12)])
def test_networks_together_are_each_one_alone_to_the_last_bit(samples, classes, seed):
    kinds = [("random", 1), ("all right", 5), ("random", 50), ("all wrong", 3), ("tied", 4), ("equal logits", 1)]
    drawn = [drawn_case(kind, seed + own, samples, classes, scale) for own, (kind, scale) in enumerate(kinds)]
    logits, targets = np.stack([scores for scores, _ in drawn]), drawn[seed][1]
    assert refinements(logits, targets) == [refinement(own, targets) for own in logits]


@pytest.mark.parametrize(("samples", "classes", "scale"), PROBMETRICS)
def test_equals_what_probmetrics_gave(samples, classes, scale):
    found = refinement(*drawn_predictions(0, samples, classes, scale))
    assert (found.nll, found.brier) == pytest.approx(PROBMETRICS[samples, classes, scale], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("samples", "classes", "scale"), [(360, 10, 5), (3000, 30, 3), (50, 2, 1), (360, 10, 50)])
def test_equals_probmetrics(samples, classes, scale, seed):
    calibrators = pytest.importorskip("probmetrics.calibrators")
    distributions = pytest.importorskip("probmetrics.distributions")
    logits, targets = drawn_predictions(seed, samples, classes, scale)
    fold, mixed = folds_of(targets), np.empty(logits.shape)
    given_logits, labels = torch.from_numpy(logits.astype(np.float64)), torch.from_numpy(targets)
    for each in range(FOLDS):
        held_out = fold == each
        calibrator = calibrators.get_calibrator("ts-mix")
        calibrator.fit_torch(distributions.CategoricalLogits(given_logits[~held_out]), labels[~held_out])
        predicted = calibrator.predict_proba_torch(distributions.CategoricalLogits(given_logits[held_out]))
        mixed[held_out] = predicted.get_probs().numpy()
    measured = evaluate_probabilities(mixed, targets)
    found = refinement(logits, targets)
    assert (found.nll, found.brier) == pytest.approx((measured["nll"], measured["brier"]), abs=1e-6)


@given(st.integers(0, 10_000), st.integers(15, 200), st.integers(2, 6), st.sampled_from([0.01, 1.0, 30.0]))
def test_refinement_and_calibration_add_up_to_the_score(seed, samples, classes, scale):
    logits, targets = drawn_predictions(seed, samples, classes, scale)
    scores = evaluate_probabilities(softmax64(logits), targets)
    found = refinement_columns(refinement(logits, targets), scores)
    assert tuple(found) == REFINEMENT_COLUMNS
    for score in ("nll", "brier"):
        assert found[f"refinement_{score}"] + found[f"calibration_{score}"] == pytest.approx(scores[score], abs=1e-12)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 25.0])
def test_no_temperature_changes_it(temperature):
    logits, targets = drawn_predictions(2, 400, 5, 3)
    expected, found = refinement(logits, targets), refinement(logits / np.float32(temperature), targets)
    assert (found.nll, found.brier) == pytest.approx((expected.nll, expected.brier), abs=1e-6)


def test_too_few_samples_give_no_number():
    found = refinement_columns(refinement(np.zeros((4, 2)), [0, 1, 0, 1]), {"nll": 0.7, "brier": 0.5})
    assert all(math.isnan(value) for value in found.values())


def test_folds_share_every_class_out_and_follow_from_the_labels():
    targets = np.random.default_rng(0).integers(0, 7, 350)
    fold = folds_of(targets)
    assert (fold == folds_of(targets.copy())).all()
    for label in range(7):
        sizes = np.bincount(fold[targets == label], minlength=FOLDS)
        assert sizes.max() - sizes.min() <= 1
    assert np.bincount(fold).tolist() == [70] * FOLDS

"""Detection of another distribution against scikit-learn, torch-uncertainty and counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.trainables.oracles import oracle
from trainables.metrics.out_of_distribution import (
    OOD_COLUMNS,
    SCORES,
    aupr,
    detection_auroc,
    false_positive_rate,
    ood_columns,
    other_splits,
)


def drawn(seed: int, decimals: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(1, 1, 120).round(decimals), rng.normal(0, 1, 80).round(decimals)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("decimals", [12, 0])
def test_areas_are_scikit_learns(seed: int, decimals: int) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    inside, outside = drawn(seed, decimals)
    labels, score = np.repeat([0, 1], [120, 80]), -np.concatenate([inside, outside])
    assert detection_auroc(inside, outside) == pytest.approx(roc_auc_score(labels, score), abs=1e-12)
    assert aupr(inside, outside) == pytest.approx(average_precision_score(labels, score), abs=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("decimals", [12, 0])
def test_the_false_positive_rate_is_the_least_that_finds_enough(seed: int, decimals: int) -> None:
    inside, outside = drawn(seed, decimals)
    rates = [np.mean(inside <= t) for t in np.unique(outside) if np.mean(outside <= t) >= 0.95]
    assert false_positive_rate(inside, outside) == pytest.approx(min(rates))


@pytest.mark.parametrize("seed", range(6))
def test_the_false_positive_rate_is_torch_uncertaintys(seed: int) -> None:
    fpr = oracle("torch_uncertainty.metrics.classification.fpr")
    inside, outside = drawn(seed)
    metric = fpr.FPR95(pos_label=1)
    metric.update(torch.from_numpy(-np.concatenate([inside, outside])), torch.tensor([0] * 120 + [1] * 80))
    assert false_positive_rate(inside, outside) == pytest.approx(float(metric.compute()), abs=1e-6)


def test_scores_are_those_of_the_papers() -> None:
    logits = np.random.default_rng(0).normal(size=(50, 5)) * 4
    given = torch.from_numpy(logits)
    p = given.softmax(1)
    np.testing.assert_allclose(np.exp(SCORES["msp"](logits)), p.max(1).values)
    np.testing.assert_allclose(SCORES["energy"](logits), given.logsumexp(1))
    np.testing.assert_allclose(SCORES["entropy"](logits), (p * p.log()).sum(1))
    np.testing.assert_allclose(SCORES["max_logit"](logits), given.max(1).values)


def test_what_is_far_is_found_and_what_is_the_same_is_not() -> None:
    rng = np.random.default_rng(1)
    own, same, far = (rng.normal(size=(2000, 10)) * s for s in (4, 4, 0.1))
    found, nothing = ood_columns(own, far), ood_columns(own, same)
    assert tuple(found) == OOD_COLUMNS
    assert all(found[f"ood_{score}_auroc"] > 0.95 for score in SCORES)
    assert all(nothing[f"ood_{score}_auroc"] == pytest.approx(0.5, abs=0.04) for score in SCORES)


def test_further_splits_are_held_against_test() -> None:
    assert other_splits(("val", "test", "shifted", "train")) == ["shifted"]
    assert other_splits(["val", "shifted"]) == [] and other_splits(["val", "test"]) == []

"""What metrics declare of themselves; those with options against loops over samples."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.trainables.registered import register
from trainables.metrics import evaluate_probabilities
from trainables.metrics.base import (
    METRICS,
    Metric,
    always_measured,
    further_metric_columns,
    further_metric_names,
    further_metrics,
    larger_is_better,
    metric_of,
)


def _predictions(seed: int, samples: int = 200, classes: int = 4, decimals: int = 12):
    random = np.random.default_rng(seed)
    probabilities = random.dirichlet(np.ones(classes), samples).round(decimals)
    return probabilities / probabilities.sum(1, keepdims=True), random.integers(0, classes, samples)


def _risk(probabilities, targets, coverage):
    """Mean over all orders of tied samples: expected error rate of the accepted ones, one sample at a time."""
    confidence = [max(row) for row in probabilities]
    wrong = [int(row.argmax() != y) for row, y in zip(probabilities, targets, strict=True)]
    left, risk = math.ceil(coverage * len(targets)), 0.0
    accepted = left
    for value in sorted(set(confidence), reverse=True):
        tied = [w for c, w in zip(confidence, wrong, strict=True) if c == value]
        taken = min(left, len(tied))
        risk += taken * sum(tied) / len(tied)
        left -= taken
        if not left:
            return risk / accepted
    raise AssertionError


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("decimals", [12, 1])
def test_risk_at_a_coverage_equals_the_loop(seed, decimals):
    probabilities, targets = _predictions(seed, decimals=decimals)
    for coverage in (0.01, 0.3, 0.8, 1.0):
        found = METRICS.build("risk_at_coverage", probabilities, targets, coverage=coverage)
        assert math.isclose(found, _risk(probabilities, targets, coverage), abs_tol=1e-12)
    assert math.isclose(found, 1 - evaluate_probabilities(probabilities, targets)["accuracy"], abs_tol=1e-12)


def test_calibration_error_is_the_usual_one_where_it_is_asked_for():
    probabilities, targets = _predictions(7)
    usual = evaluate_probabilities(probabilities, targets, 10)
    for norm, scheme, name in (("mean", "equal_width", "ece"), ("mean", "equal_mass", "ada_ece"),
                               ("maximum", "equal_width", "mce")):  # fmt: skip
        found = METRICS.build("calibration_error", probabilities, targets, bins=10, scheme=scheme, norm=norm)
        assert math.isclose(found, usual[name], abs_tol=1e-12)
    assert METRICS.build("calibration_error", probabilities, targets) > usual["ece"], "a root of mean squares"


def test_columns_are_named_only_where_there_are_metrics():
    assert further_metric_names(()) == ()
    assert further_metric_names(["m:WorstClass"]) == ("worst_class", "metrics_unavailable")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("decimals", [12, 1])
def test_the_auroc_of_confidence_counts_pairs_and_is_scikit_learns(seed, decimals):
    from sklearn.metrics import roc_auc_score

    probabilities, targets = _predictions(seed, decimals=decimals)
    confidence, correct = probabilities.max(1), probabilities.argmax(1) == targets
    hits, errors = confidence[correct], confidence[~correct]
    pairs = [(h > e) + 0.5 * (h == e) for h in hits for e in errors]
    found = METRICS.build("confidence_auroc", probabilities, targets)
    assert math.isclose(found, math.fsum(pairs) / len(pairs), abs_tol=1e-12)
    assert math.isclose(found, roc_auc_score(correct, confidence), abs_tol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_augrc_is_the_area_below_the_generalised_risk(seed):
    probabilities, targets = _predictions(seed)
    order = np.argsort(-probabilities.max(1), kind="stable")
    wrong = (probabilities.argmax(1) != targets)[order]
    risks = [0.0, *(wrong.cumsum() / len(wrong))]
    area = sum((a + b) / 2 for a, b in itertools.pairwise(risks)) / len(wrong)
    assert math.isclose(METRICS.build("augrc", probabilities, targets), area, abs_tol=1e-12)


def test_one_sided_predictions_have_no_auroc_and_a_plain_augrc():
    probabilities, _ = _predictions(0)
    right = probabilities.argmax(1)
    assert math.isnan(METRICS.build("confidence_auroc", probabilities, right))
    assert METRICS.build("augrc", probabilities, right) == 0
    assert METRICS.build("augrc", probabilities, (right + 1) % 4) == 0.5


def test_only_what_is_asked_for_is_measured():
    probabilities, targets = _predictions(3)
    assert set(further_metric_columns((("smooth_ece", {}),), probabilities, targets)) == {"smooth_ece"}
    assert further_metric_columns((), probabilities, targets) == {}


@pytest.mark.parametrize(
    ("column", "larger"),
    [
        ("val_accuracy", True),
        ("test_posthoc_metacal_acc_s99_accuracy", True),
        ("val_confidence_auroc", True),
        ("ood_msp_aupr", True),
        ("ood_msp_fpr95", False),
        ("val_ada_ece", False),
        ("val_majority_share", False),
        ("hessian_training_trace", False),
        ("val_my_own", False),
    ],
)
def test_a_metric_says_itself_which_end_is_good(column, larger):
    assert larger_is_better(column) == larger


def test_the_longest_name_that_a_column_ends_with_is_its_metric():
    assert metric_of("val_posthoc_temperature_ada_ece").name == "ada_ece"
    assert metric_of("posthoc_temperature_temperature") is None


def test_every_metric_declares_a_range_that_its_values_keep_to():
    probabilities, targets = _predictions(3)
    for each in METRICS.built_in():
        if isinstance(each, Metric) and not each.needs:
            low, high = each.range
            value = each.build(probabilities, targets)
            assert low <= value <= high or (math.isnan(value) and each.name == "s99_accuracy"), each.name


def test_a_new_metric_that_is_always_measured_needs_no_list(monkeypatch):
    def gap(probabilities, targets):
        return float((probabilities.max(1) - (probabilities.argmax(1) == targets)).mean())

    register(monkeypatch, METRICS, "gap", Metric("gap", gap, mode="min", always=True, binned=True))
    probabilities, targets = _predictions(5)
    assert always_measured()[-1] == always_measured(lambda metric: metric.binned)[-1] == "gap"
    assert "gap" not in further_metrics()
    assert evaluate_probabilities(probabilities, targets)["gap"] == gap(probabilities, targets)

"""`sweeper.calibration_report` beside the metrics that it is made of and an independent library's."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from sweeper import SweeperError, calibration_report
from trainables.metrics import METRICS, evaluate_probabilities, softmax64


@pytest.fixture(scope="module")
def drawn():
    random = np.random.default_rng(1)
    probabilities = softmax64(random.normal(size=(500, 3)) * 2)
    targets = np.array([random.choice(3, p=p) for p in probabilities])
    return probabilities, targets


NAMES = np.array(["ant", "bee", "cat"])


@pytest.fixture(scope="module")
def report(drawn):
    return calibration_report(NAMES[drawn[1]], drawn[0], bins=10, metrics=["smooth_ece", "mce"])


def test_values_are_those_of_the_metrics(drawn, report):
    probabilities, targets = drawn
    expected = evaluate_probabilities(probabilities, targets, 10)
    for name in ("accuracy", "nll", "brier", "ece", "ada_ece", "aurc", "mce"):
        assert report.metrics[name] == expected[name] and report.standard_errors[name] > 0
    assert report.metrics["smooth_ece"] == METRICS.build("smooth_ece", probabilities, targets)
    assert report.metrics["nll"] == pytest.approx(log_loss(NAMES[targets], probabilities))
    shown = repr(report)
    assert all(METRICS[name].words in shown for name in report.metrics) and "±" in shown
    assert len(report.figure.panels) == 1 and "<svg" in report._repr_html_()


def test_two_classes_by_one_column_also_show_the_second(drawn):
    probabilities, targets = drawn
    positive, happened = probabilities[:, 1], targets == 1
    report = calibration_report(happened, positive)
    same = calibration_report(happened, np.stack([1 - positive, positive], axis=1))
    assert report.metrics == same.metrics and len(report.figure.panels) == 2
    assert report.metrics["brier"] == pytest.approx(2 * brier_score_loss(happened, positive))
    assert {"ece_positive", "calibration_slope", "calibration_intercept"} <= set(report.metrics)


def test_weights_equal_repetitions(drawn):
    probabilities, targets = drawn
    weights = np.random.default_rng(2).integers(1, 4, len(targets))
    report = calibration_report(targets, probabilities, weights=weights)
    repeated = calibration_report(np.repeat(targets, weights), np.repeat(probabilities, weights, axis=0))
    for name in ("accuracy", "nll", "brier", "ece"):
        assert report.metrics[f"weighted_{name}"] == pytest.approx(repeated.metrics[name], rel=1e-12)
    predicted = probabilities.argmax(1)
    assert report.metrics["weighted_accuracy"] == pytest.approx(
        accuracy_score(targets, predicted, sample_weight=weights)
    )


@pytest.mark.parametrize("suffix", [".html", ".svg", ".png"])
def test_the_diagram_is_written(suffix, report, tmp_path):
    path = report.save(tmp_path / f"reliability{suffix}")
    assert path.stat().st_size > 1000


def test_bad_input_is_refused(drawn, report, tmp_path):
    probabilities, targets = drawn
    for y, given, options in (
        (targets, probabilities * 2, {}),
        (targets, probabilities[:, :2], {}),
        (targets[:-1], probabilities, {}),
        (targets, probabilities, {"metrics": ["ecee"]}),
        (targets, probabilities, {"bins": 1000}),
        (np.array(["a", "b"])[targets % 2], probabilities, {}),
    ):
        with pytest.raises(ValueError):
            calibration_report(y, given, **options)
    with pytest.raises(SweeperError):
        report.save(tmp_path / "reliability.docx")

"""Independent packages (the `oracles` extra): equal where conventions coincide, and shown where they do not."""

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.trainables import reference_metrics as reference
from trainables.metrics import evaluate_probabilities
from trainables.metrics.base import METRICS
from trainables.metrics.binning import calibration_error


@pytest.fixture(scope="module")
def torchmetrics_error():
    from trainables.extensions.libraries import register_missing_operators

    register_missing_operators()
    package = pytest.importorskip("torchmetrics.functional.classification")

    def error(probabilities, targets, bins=15, norm="l1"):
        found = package.multiclass_calibration_error(
            torch.as_tensor(probabilities), torch.as_tensor(targets), probabilities.shape[1], bins, norm
        )
        return float(found)

    return error


def torch_uncertainty_file(name, torchmetrics_error):
    """One file of its classification metrics: the package's `__init__` asks for Lightning, the files do not."""
    package = importlib.util.find_spec("torch_uncertainty")
    if package is None:
        pytest.skip("torch-uncertainty is not installed")
    path = Path(package.origin).parent / "metrics" / "classification" / f"{name}.py"
    spec = importlib.util.spec_from_file_location("torch_uncertainty_" + path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def top(probabilities, targets):
    return probabilities.max(1), (probabilities.argmax(1) == targets).astype(float)


@pytest.mark.parametrize("seed", range(15))
def test_ece_mce_and_root_mean_square_of_torchmetrics(seed, torchmetrics_error):
    probabilities, targets = reference.random_case(seed, samples=200)
    confidence, correct = top(probabilities, targets)
    for norm, ours in (("l1", "mean"), ("max", "maximum"), ("l2", "root_mean_square")):
        expected = torchmetrics_error(probabilities, targets, 15, norm)
        assert calibration_error(confidence, correct, 15, norm=ours) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_ece_and_mce_of_netcal(seed):
    metrics = pytest.importorskip("netcal.metrics")
    probabilities, targets = reference.random_case(seed, samples=200, classes=5)
    found = evaluate_probabilities(probabilities, targets, 15)
    assert found["ece"] == pytest.approx(metrics.ECE(15).measure(probabilities, targets), abs=1e-10)
    assert found["mce"] == pytest.approx(metrics.MCE(15).measure(probabilities, targets), abs=1e-10)


@pytest.mark.parametrize("seed", range(10))
def test_equal_mass_error_of_torch_uncertainty(seed, torchmetrics_error):
    module = torch_uncertainty_file("calibration/adaptive_calibration_error", torchmetrics_error)
    probabilities, targets = reference.random_case(seed, samples=203)
    confidence, correct = (torch.as_tensor(a) for a in top(probabilities, targets))
    found = evaluate_probabilities(probabilities, targets, 15)["ada_ece"]
    assert found == pytest.approx(float(module._ace_compute(confidence, correct, 15)), abs=1e-10)


@pytest.mark.parametrize("seed", range(10))
def test_aurc_of_torch_uncertainty_is_a_trapezoid_through_our_points(seed, torchmetrics_error):
    oracle = torch_uncertainty_file("risk_coverage", torchmetrics_error).AURC()
    probabilities, targets = reference.random_case(seed, samples=120)
    oracle.update(torch.as_tensor(probabilities), torch.as_tensor(targets))
    found = evaluate_probabilities(probabilities, targets)["aurc"]
    risks = oracle.partial_compute()
    assert found == pytest.approx(float(risks.mean()), abs=1e-6)
    trapezoid = (found * 120 - float(risks[0] + risks[-1]) / 2) / 119
    assert float(oracle.compute()) == pytest.approx(trapezoid, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_brier_score_of_torch_uncertainty_and_log_loss_of_scikit_learn(seed, torchmetrics_error):
    from sklearn.metrics import log_loss, top_k_accuracy_score

    probabilities, targets = reference.random_case(seed, samples=120, classes=8)
    found = evaluate_probabilities(probabilities, targets)
    oracle = torch_uncertainty_file("brier_score", torchmetrics_error).BrierScore(8)
    oracle.update(torch.as_tensor(probabilities), torch.as_tensor(targets))
    assert found["brier"] == pytest.approx(float(oracle.compute()), abs=1e-6)
    assert found["nll"] == pytest.approx(log_loss(targets, probabilities, labels=range(8)))
    assert found["top5"] == pytest.approx(top_k_accuracy_score(targets, probabilities, k=5, labels=range(8)))


@pytest.mark.parametrize("seed", range(10))
def test_augrc_of_torch_uncertainty_leaves_out_the_first_trapezoid(seed, torchmetrics_error):
    """It integrates from coverage 1/n on and divides by what that leaves of [0, 1]."""
    oracle = torch_uncertainty_file("risk_coverage", torchmetrics_error).AUGRC()
    probabilities, targets = reference.random_case(seed, samples=120)
    oracle.update(torch.as_tensor(probabilities), torch.as_tensor(targets))
    first = float(oracle.partial_compute()[0]) / 120**2 / 2
    found = (METRICS.build("augrc", probabilities, targets) - first) / (1 - 1 / 120)
    assert found == pytest.approx(float(oracle.compute()), abs=1e-6)

"""Independent packages as oracles; they come with the project's `oracles` extra."""

import importlib.util
from pathlib import Path

import pytest
import torch

from trainables.losses import build_loss


def torch_uncertainty_classification():
    """The package's file of classification losses alone: its `__init__` asks for Lightning, the file does not."""
    package = importlib.util.find_spec("torch_uncertainty")
    if package is None:
        pytest.skip("torch-uncertainty is not installed")
    path = Path(package.origin).parent / "losses" / "classification.py"
    spec = importlib.util.spec_from_file_location("torch_uncertainty_classification", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("gamma", [0.0, 0.7, 1.0, 3.0, 5.0])
def test_focal_loss_of_torch_uncertainty(reference, gamma):
    oracle = torch_uncertainty_classification().FocalLoss(gamma=gamma)
    for seed in range(20):
        logits, targets = reference.batch(seed)
        torch.testing.assert_close(
            build_loss("focal", gamma=gamma)(logits, targets), oracle(logits, targets), rtol=1e-6, atol=1e-9
        )


@pytest.mark.parametrize("weight", [1.0, 2.0, 8.0])
def test_mmce_penalty_of_netcal(reference, weight):
    oracle = pytest.importorskip("netcal.regularization").MMCEPenalty(weight=weight)
    compared = 0
    for seed in range(40):
        logits, targets = reference.batch(seed, shape=(24, 5), scale=1.5)
        right = (logits.argmax(-1) == targets).sum()
        if 0 < right < 24:
            penalty = build_loss("mmce", weight=weight)(logits, targets) - build_loss("cross_entropy")(logits, targets)
            torch.testing.assert_close(penalty, oracle(logits, targets), rtol=1e-6, atol=1e-6)
            compared += 1
    assert compared >= 20


def test_plain_mmce_of_netcals_metric(reference):
    oracle = pytest.importorskip("netcal.metrics").MMCE()
    for seed in range(20):
        logits, targets = reference.batch(seed, shape=(24, 5), scale=1.5)
        loss = build_loss("mmce", variant="plain", weight=1.0)
        penalty = loss(logits, targets) - build_loss("cross_entropy")(logits, targets)
        expected = oracle.measure(torch.softmax(logits, -1).numpy(), targets.numpy())
        assert penalty.item() == pytest.approx(expected, rel=1e-6)

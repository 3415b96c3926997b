"""The Python names that users' scripts rely on: each is imported from where it is documented, and does its work."""

import math

import numpy as np
import pytest
import torch

from tests.trainables.small_data import small_digits
from trainables.curvature import CURVATURE_FIELDS, CurvatureSettings, measure_curvature, spectral_density
from trainables.datasets import load_dataset
from trainables.losses import Loss, build_loss
from trainables.metrics import METRIC_NAMES, evaluate_probabilities
from trainables.models import build_for
from trainables.posthoc import fit
from trainables.training import Replicate

MLP = {"name": "mlp", "depth": 1, "width": 4}


@pytest.fixture(scope="module")
def dataset():
    return small_digits(train=40, held_out=30)


@pytest.fixture(scope="module")
def logits(dataset):
    torch.manual_seed(0)
    with torch.no_grad():
        return build_for(dataset, MLP)(dataset.val.inputs)


def test_load_dataset_gives_splits_of_inputs_and_targets():
    digits = load_dataset("digits")
    assert digits.classes == 10
    assert len(digits.train.inputs) == len(digits.train.targets) > len(digits.val.targets)


def test_build_for_gives_a_network_of_the_data_sets_shape_and_classes(dataset, logits):
    assert logits.shape == (len(dataset.val.targets), dataset.classes)


def test_build_loss_takes_the_name_and_hyperparameters(dataset, logits):
    focal, plain = build_loss("focal", gamma=0.0), build_loss("cross_entropy")
    assert isinstance(focal, Loss)
    assert float(focal(logits, dataset.val.targets)) == pytest.approx(float(plain(logits, dataset.val.targets)))
    with pytest.raises(ValueError, match="gamma"):
        build_loss("focal", gamma=-1.0)


def test_evaluate_probabilities_gives_every_metric(dataset, logits):
    found = evaluate_probabilities(torch.softmax(logits, 1).double(), dataset.val.targets)
    assert tuple(found) == METRIC_NAMES
    assert found["nll"] == pytest.approx(float(build_loss("cross_entropy")(logits, dataset.val.targets)), rel=1e-5)


def test_fit_gives_a_calibrator_of_logits(dataset, logits):
    calibrator = fit("temperature", logits, dataset.val.targets)
    scaled = torch.softmax(logits.double() / calibrator.parameters["temperature"], 1)
    np.testing.assert_allclose(calibrator(logits), scaled.numpy(), rtol=1e-12)


def test_curvature_is_measured_with_settings_of_ones_own(dataset, logits):
    torch.manual_seed(0)
    network, losses = build_for(dataset, {**MLP, "depth": 0}), {"plain": build_loss("cross_entropy")}
    settings = CurvatureSettings(lanczos_steps=4, spectrum_steps=4)
    data = (network, dataset.val.inputs, dataset.val.targets, losses)
    measured = measure_curvature(*data, settings=settings, seed=0)["plain"]
    assert tuple(measured) == CURVATURE_FIELDS
    assert 0 < measured["lambda_max"] < measured["trace"], "the Hessian of a linear classifier is positive semidefinite"
    rows = spectral_density(*data, settings=settings, seed=0)["plain"]
    assert math.fsum(row["weight"] for row in rows) == pytest.approx(1.0)


def test_a_replicate_trains_and_evaluates(dataset):
    configuration = {
        "loss": {"name": "focal", "gamma": 2.0},
        "architecture": MLP,
        "optimizer": {"name": "sgd", "lr": 0.1, "batch_size": 20, "schedule": "constant"},
    }
    replicate = Replicate(configuration, seed=0, dataset=dataset, max_epochs=1)
    before = [p.detach().clone() for p in replicate.model.parameters()]
    replicate.train_epoch()
    assert replicate.epoch == 1
    assert not all(torch.equal(old, new) for old, new in zip(before, replicate.model.parameters(), strict=True))

"""A replicate's training is a function of its seed alone, and a checkpoint carries all of it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from tests.packs import pack
from tests.trainables.registered import register
from tests.trainables.small_data import poisoned, small_digits
from tests.trainables.training.fixtures import normed, one_thread  # noqa: F401  # for every test here
from tests.trainables.training.lanes.comparison import SGD, configuration, timeless
from trainables.models import ARCHITECTURES
from trainables.models.base import ArchitectureComponent
from trainables.training.acceleration import PLAIN, TrainingSettings
from trainables.training.evaluation import EvaluationSettings
from trainables.training.loop import Replicate

EPOCHS = 4
LOSSES = [
    {"name": "cross_entropy"},
    {"name": "focal", "gamma": 3.0},
    {"name": "adafocal"},
    {"name": "selective_risk", "coverage": 0.7, "nu": 0.1, "history": "epoch"},
    {"name": "hessian_trace", "weight": 1e-3},
]


@pytest.fixture(scope="module")
def dataset():
    return small_digits()


@pytest.fixture(autouse=True)
def networks(monkeypatch):
    """Networks that draw from the global generator in every step, one with a batch norm; registered for one test."""

    def dropout_mlp(input_shape, classes):
        features = math.prod(input_shape)
        return nn.Sequential(nn.Flatten(), nn.Linear(features, 32), nn.ReLU(), nn.Dropout(0.4), nn.Linear(32, classes))

    for build in (dropout_mlp, normed):
        register(monkeypatch, ARCHITECTURES, build.__name__, ArchitectureComponent(build.__name__, build))


def _replicate(dataset, values=None, seed=3, epochs=EPOCHS):
    return Replicate(values or configuration(), seed=seed, dataset=dataset, max_epochs=epochs)


def _rows(replicate, epochs):
    return timeless([replicate.train_epoch() for _ in range(epochs)])


def _weights(replicate):
    return {name: tensor.clone() for name, tensor in replicate.model.state_dict().items()}


def _same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_another_seed_gives_other_weights_and_another_order(dataset):
    first, second = _replicate(dataset, seed=1), _replicate(dataset, seed=2)
    assert not _same(_weights(first), _weights(second))
    second.model.load_state_dict(first.model.state_dict())
    assert _rows(first, 1) != _rows(second, 1), "the order of the data differs too"


@pytest.mark.parametrize("architecture", ["mlp", "dropout_mlp", "resnet8"])
def test_replicates_do_not_disturb_each_others_randomness(dataset, architecture):
    values = configuration(architecture=architecture)
    alone = _rows(_replicate(dataset, values, seed=1), 2)
    one, two = (_replicate(dataset, values, seed=seed) for seed in (1, 2))
    together = []
    for _ in range(2):
        together += _rows(one, 1)
        torch.randn(5)
        _rows(two, 1)
    assert together == alone


def test_training_leaves_the_processs_randomness_alone(dataset):
    torch.manual_seed(11)
    expected = torch.randn(4)
    torch.manual_seed(11)
    replicate = _replicate(dataset)
    replicate.train_epoch()
    replicate.evaluate(EvaluationSettings(bootstrap=5), "rung")
    assert torch.equal(torch.randn(4), expected)


RECIPES = [
    {"freeze": 1, "layer_decay": 0.7},
    {"sharpness": "sam", "gradient_clip": 1.0},
    {"sharpness": "asam", "gradient_clip": 1.0},
    {"ema": 0.8, "checkpoint": "best_val_nll"},
]


@pytest.mark.parametrize(
    ("values", "training"),
    [
        *((configuration(loss, network), PLAIN) for loss in LOSSES for network in ("mlp", "dropout_mlp")),
        *((configuration(architecture="normed", **recipe), PLAIN) for recipe in RECIPES),
        (configuration(architecture="normed", **RECIPES[1]), TrainingSettings(precision="bfloat16")),
    ],
)
def test_a_restored_replicate_continues_bit_for_bit(dataset, values, training):
    def begun():
        return Replicate(values, seed=3, dataset=dataset, max_epochs=EPOCHS, training=training)

    whole, expected, states = begun(), [], []
    for _ in range(EPOCHS):
        states.append(copy.deepcopy(whole.state_dict()))
        expected += _rows(whole, 1)
    for cut, state in enumerate(states):
        after = begun()
        after.load_state_dict(state)
        assert _rows(after, EPOCHS - cut) == expected[cut:]
        assert after.epoch == EPOCHS and _same(_weights(after), _weights(whole))
        assert _same(after.measured.state_dict(), whole.measured.state_dict())


def test_the_learning_rate_follows_the_schedule_to_the_last_epoch(dataset):
    rows = _rows(_replicate(dataset), EPOCHS)
    assert [row["lr"] for row in rows] == [
        pytest.approx(SGD["lr"] * 0.5 * (1 + math.cos(math.pi * epoch / EPOCHS))) for epoch in range(EPOCHS)
    ]


def test_a_network_that_explodes_has_metrics_that_are_not_numbers(dataset):
    row = _replicate(poisoned(dataset)).train_epoch()
    assert math.isnan(row["train_loss"])
    assert all(math.isnan(row[name]) for name in ("val_nll", "val_accuracy", "val_ece"))


def test_the_recipes_best_weights_are_evaluated_at_the_end(dataset):
    """With a learning rate that ruins the network late, the best epoch is an earlier one."""
    recipe = {"checkpoint": "best_val_nll", "schedule": "constant", "lr": 0.8, "momentum": 0.95}
    replicate = _replicate(dataset, configuration(**recipe), epochs=6)
    kept, best = None, math.inf
    for _ in range(6):
        row = replicate.train_epoch()
        if row["val_nll"] < best:
            kept, best, best_epoch = _weights(replicate), row["val_nll"], row["epoch"]
    assert best_epoch < 6
    last = _weights(replicate)
    settings = EvaluationSettings(bootstrap=0)
    end = replicate.evaluate(settings, "end").rows[0]
    assert end["nll"] == pytest.approx(best, rel=1e-6)
    assert _same(_weights(replicate), last), "training would go on from the last weights"
    assert replicate.evaluate(settings, "rung").rows[0]["nll"] == pytest.approx(row["val_nll"], rel=1e-6)
    restored = _replicate(dataset, configuration(**recipe), epochs=6)
    restored.load_state_dict(copy.deepcopy(replicate.state_dict()))
    assert repr(restored.evaluate(settings, "end").rows) == repr(replicate.evaluate(settings, "end").rows)
    replicate.model.load_state_dict(kept)
    assert replicate.evaluate(settings, "rung").rows[0]["nll"] == end["nll"]


@pytest.mark.parametrize("packing", ["sequential", "lanes"])
@pytest.mark.parametrize("bins", [10, 15])
def test_an_epochs_calibration_error_is_that_of_its_evaluation(dataset, bins, packing):
    """An objective named `val_ece` means one number, whether an epoch or an evaluation measured it."""
    settings = EvaluationSettings(bins=bins, bootstrap=0)
    replicates = [
        Replicate(configuration(), seed=seed, dataset=dataset, max_epochs=EPOCHS, bins=bins) for seed in range(2)
    ]
    group = pack(replicates, packing)
    for _ in range(2):
        rows = group.train_epoch()
        for replicate, row in zip(replicates, rows, strict=True):
            (found,) = (r["ece"] for r in replicate.evaluate(settings, "rung").rows if r["split"] == "val")
            assert row["val_ece"] == pytest.approx(found, rel=1e-5 if packing == "lanes" else 1e-12)

"""SAM and ASAM take the steps that their papers' two lines say, on any loss, clipped, and resumed in their midst."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.trainables.small_data import small_digits
from trainables.losses import build_loss
from trainables.models import ARCHITECTURES
from trainables.registry import Component
from trainables.training.acceleration import TrainingSettings
from trainables.training.graphs import graphs_fault
from trainables.training.loop import Replicate
from trainables.training.recipe import OPTIMIZERS
from trainables.training.sharpness import radius_of

SGD = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "batch_size": 64, "schedule": "cosine"}


@pytest.fixture(scope="module")
def dataset():
    return small_digits()


@pytest.fixture
def normed(monkeypatch):
    """A network with a batch norm and dropout, registered for one test."""

    def build(input_shape, classes):
        return nn.Sequential(
            nn.Conv2d(input_shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3),
            nn.Linear(4 * (input_shape[1] - 2) * (input_shape[2] - 2), classes),
        )  # fmt: skip

    monkeypatch.setitem(ARCHITECTURES._components, "normed", Component("normed", build))


def _configuration(loss=None, architecture="normed", **optimizer):
    return {
        "loss": loss or {"name": "cross_entropy"},
        "architecture": {"name": architecture},
        "optimizer": {**SGD, **optimizer},
    }


def _replicate(dataset, configuration, training=None):
    settings = {} if training is None else {"training": training}
    return Replicate(configuration, seed=3, dataset=dataset, max_epochs=3, **settings)


def _named(parameters, values):
    return dict(zip(parameters, values, strict=True))


def naive_step(model, loss, inputs, targets, kind, rho, optimizer, clip):
    """Two lines of the papers, parameter by parameter: gradients are taken apart from `.grad`, weights are replaced."""
    names = [name for name, _ in model.named_parameters()]
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    before = torch.get_rng_state()
    value = loss(model(inputs), targets)
    after = torch.get_rng_state()
    gradient = _named(names, torch.autograd.grad(value, list(model.parameters())))
    shape = {
        n: torch.ones_like(w) if kind == "sam" or n.endswith("bias") else w.abs() + 0.01 for n, w in weights.items()
    }
    norm = sum(float((shape[n].double() * gradient[n].double()).square().sum()) for n in names) ** 0.5
    twin = copy.deepcopy(model)  # its statistics may change
    with torch.no_grad():
        for name, p in twin.named_parameters():
            p.add_(rho / norm * shape[name] ** 2 * gradient[name])
    torch.set_rng_state(before)
    second = _named(names, torch.autograd.grad(loss(twin(inputs), targets), list(twin.parameters())))
    torch.set_rng_state(after)
    whole = sum(float(g.square().sum()) for g in second.values()) ** 0.5
    for name, p in model.named_parameters():
        p.grad = second[name] * (1 if clip is None else min(1.0, clip / (whole + 1e-6)))
    optimizer.step()
    return value.detach()


@pytest.mark.parametrize(
    ("kind", "rho", "clip"), [("sam", 0.05, None), ("sam", 0.5, 0.3), ("asam", 0.5, None), ("asam", 2.0, 0.3)]
)
def test_two_epochs_are_those_of_a_naive_reference(dataset, normed, kind, rho, clip):
    options = {"sharpness": kind, "rho": rho, **({} if clip is None else {"gradient_clip": clip})}
    found, plain = (_replicate(dataset, _configuration(**more)) for more in (options, {}))
    reference = _replicate(dataset, _configuration())
    loss = build_loss("cross_entropy")
    for _ in range(2):
        row, other = found.train_epoch(), plain.train_epoch()
        reference.begin_epoch()
        total = 0.0
        with reference.own_randomness():
            for inputs, targets in reference.training_batches():
                step = naive_step(reference.model, loss, inputs, targets, kind, rho, reference.optimizer, clip)
                total += float(step) * len(targets)
        reference.epoch += 1
        assert row["train_loss"] == pytest.approx(total / len(dataset.train), rel=1e-5)
    assert row["train_loss"] != other["train_loss"]
    expected = reference.model.state_dict()
    for name, tensor in found.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=2e-4, atol=2e-6, msg=name)


def test_a_radius_of_zero_takes_plain_steps(dataset, normed):
    plain, zero = (_replicate(dataset, _configuration(**more)) for more in ({}, {"sharpness": "asam", "rho": 0.0}))
    assert {**plain.train_epoch(), "seconds": 0} == {**zero.train_epoch(), "seconds": 0}


@pytest.mark.parametrize(
    "loss",
    [
        {"name": "selective_risk", "coverage": 0.7, "nu": 0.1, "history": "epoch"},
        {"name": "hessian_trace", "weight": 1e-3},
        {"name": "adafocal"},
    ],
    ids=lambda loss: loss["name"],
)
def test_a_loss_with_a_state_sees_each_batch_once(dataset, loss):
    """What a loss counts and draws in an epoch does not tell that each step had two passes."""
    sharp = {"sharpness": "sam", "rho": 0.5}
    plain, sharp = (_replicate(dataset, _configuration(loss, "mlp", lr=1e-12, **more)) for more in ({}, sharp))
    for each in (plain, sharp):
        each.begin_epoch()
        with each.own_randomness():
            for inputs, targets in each.training_batches():
                each._step(inputs, targets)
    mine, theirs = plain.loss.state_dict(), sharp.loss.state_dict()
    assert mine and mine.keys() == theirs.keys()
    for key, value in mine.items():
        torch.testing.assert_close(torch.as_tensor(theirs[key]), torch.as_tensor(value))


@pytest.mark.parametrize("kind", ["sam", "asam"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_continues_from_a_checkpoint_to_the_bit(dataset, normed, kind, precision):
    training = TrainingSettings(precision=precision)
    configuration = _configuration(sharpness=kind, gradient_clip=1.0)
    whole, first = (_replicate(dataset, configuration, training) for _ in range(2))
    rows = [whole.train_epoch() for _ in range(3)]
    first.train_epoch()
    second = _replicate(dataset, configuration, training)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    again = [second.train_epoch() for _ in range(2)]
    for row in (*rows, *again):
        del row["seconds"]
    assert again == rows[1:]
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True))


def test_defaults_and_refusals():
    assert radius_of({"name": "sgd", "sharpness": "sam"}) == 0.05
    assert radius_of({"name": "adamw", "sharpness": "asam"}) == 0.5
    assert radius_of({"name": "sgd"}) == 0.0
    (fault,) = OPTIMIZERS["sgd"].faults({"rho": 0.1})
    assert fault.startswith("rho is the radius")
    values = {"loss": {"name": "focal"}, "architecture": {"name": "resnet8"}, "optimizer": {"sharpness": "sam"}}
    assert "graphs: false" in graphs_fault(values, TrainingSettings(graphs=True))

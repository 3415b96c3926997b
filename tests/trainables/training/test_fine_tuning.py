"""Layers by depth are timm's where timm numbers them, and held or slowed layers do what the recipe says."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.trainables.registered import register
from tests.trainables.small_data import small_digits
from tests.trainables.training.fixtures import normed as build_normed
from tests.trainables.training.lanes.comparison import SGD, configuration, timeless
from trainables.extensions.libraries import register_missing_operators
from trainables.losses import build_loss
from trainables.models import ARCHITECTURES, build_model
from trainables.models.base import ArchitectureComponent
from trainables.training.evaluation import EvaluationSettings
from trainables.training.fine_tuning import freeze_layers, frozen_modules, layer_numbers, scale_by_depth
from trainables.training.lanes.packing import cohort_fault
from trainables.training.loop import Replicate
from trainables.training.recipe import build_optimizer, set_learning_rate

RESNET = {"name": "resnet8", "width": 0.25}


@pytest.fixture(scope="module")
def dataset():
    return small_digits()


def _replicate(dataset, loss="cross_entropy", architecture=RESNET, schedule=None, **optimizer):
    values = configuration(loss, architecture, schedule=schedule, **optimizer)
    return Replicate(values, seed=3, dataset=dataset, max_epochs=3)


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "convnext_atto", "efficientnet_b0"])
def test_rates_of_timms_networks_are_timms_own(name):
    register_missing_operators()
    import timm

    limit = torch._dynamo.config.recompile_limit
    with torch._dynamo.config.patch(
        recompile_limit=limit
    ):  # which timm 1.0.31 sets to a million for all of the process
        from timm.optim import param_groups_layer_decay

    model = timm.create_model(name, num_classes=5)
    optimizer = build_optimizer(model, SGD)
    scale_by_depth(model, optimizer, 0.75)
    set_learning_rate(optimizer, 0.2)
    oracle = param_groups_layer_decay(model, weight_decay=5e-4, layer_decay=0.75, weight_decay_exclude_1d=False)
    mine = {p: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}
    theirs = {p: (0.2 * g["lr_scale"], g["weight_decay"]) for g in oracle for p in g["params"]}
    assert mine.keys() == theirs.keys() and len({rate for rate, _ in mine.values()}) > 3
    for parameter, (rate, decay) in theirs.items():
        assert mine[parameter] == (pytest.approx(rate), decay)


@pytest.mark.parametrize(
    ("name", "layers", "stem", "head"),
    [
        ("resnet18", 10, {"conv1.weight", "bn1.weight", "bn1.bias"}, {"fc.weight", "fc.bias"}),
        ("vit_b_16", 14, {"class_token", "conv_proj.weight", "conv_proj.bias", "encoder.pos_embedding"}, None),
        (
            "convnext_tiny",
            23,
            None,
            {"classifier.0.weight", "classifier.0.bias", "classifier.2.weight", "classifier.2.bias"},
        ),
    ],
)
def test_layers_of_torchvisions_networks_are_their_blocks(name, layers, stem, head):
    register_missing_operators()
    import torchvision

    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None)
    numbers = layer_numbers(model)
    assert numbers.keys() == dict(model.named_parameters()).keys()
    assert sorted(set(numbers.values())) == list(range(layers))
    by_layer = [{n for n, at in numbers.items() if at == number} for number in (0, layers - 1)]
    assert stem in (None, by_layer[0]) and head in (None, by_layer[1])


@pytest.mark.parametrize("name", ["mlp", "resnet8", "vgg19"])
def test_layers_of_the_projects_own_networks_rise_from_the_input_to_the_head(name):
    with torch.device("meta"):
        numbers = list(layer_numbers(build_model(name, (3, 32, 32), 10)).values())
    assert numbers == sorted(numbers) and numbers[0] == 0 and numbers[-1] >= 2


def test_frozen_layers_keep_weights_and_statistics(dataset):
    found = _replicate(dataset, freeze=2)
    numbers = layer_numbers(found.model)
    before = copy.deepcopy(found.model.state_dict())
    for _ in range(2):
        found.train_epoch()
        found.evaluate(EvaluationSettings(bootstrap=0), "rung")  # puts the network into training mode
    held = {n for n, at in numbers.items() if at < 2}
    prefixes = {name.rpartition(".")[0] for name in held}
    moved = {name for name, tensor in found.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert held and all(name.rpartition(".")[0] not in prefixes for name in moved)
    assert any("running_mean" in name for name in before if name.rpartition(".")[0] in prefixes), "a norm is among them"
    assert {n for n, at in numbers.items() if at >= 2} <= moved


def test_layers_decay_as_separate_optimisers_would(dataset):
    """One optimiser a parameter, at its own rate, is the plain reference."""
    found, plain = _replicate(dataset, layer_decay=0.5, schedule="cosine"), _replicate(dataset, schedule="cosine")
    numbers = layer_numbers(plain.model)
    head = max(numbers.values())
    alone = {
        n: torch.optim.SGD([p], lr=1.0, momentum=0.9, weight_decay=5e-4) for n, p in plain.model.named_parameters()
    }
    for _ in range(2):
        found.train_epoch()
        rate = plain.begin_epoch()
        with plain.own_randomness():
            for inputs, targets in plain.training_batches():
                plain._differentiate(inputs, targets)
                for name, optimizer in alone.items():
                    optimizer.param_groups[0]["lr"] = rate * 0.5 ** (head - numbers[name])
                    optimizer.step()
        plain.epoch += 1
    for mine, theirs in zip(found.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def test_a_network_without_enough_layers_is_refused(dataset):
    with pytest.raises(ValueError, match="freeze = 40 leaves none of"):
        _replicate(dataset, freeze=40)


@pytest.mark.parametrize(
    "option", [{"freeze": 1}, {"layer_decay": 0.5}, {"ema": 0.9}, {"sharpness": "sam"}, {"mixup": 0.2}]
)
def test_lanes_refuse_in_one_sentence(option):
    values, (name,) = configuration("focal", **option), option
    assert cohort_fault(values) == f"{name} is not computed for lanes"


def test_an_affine_free_norm_in_a_frozen_block_is_held():
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False))
    model = nn.Sequential(nn.Sequential(block), nn.Linear(4, 2))
    freeze_layers(model, 1)
    model.train()
    for module in frozen_modules(model):
        module.eval()
    assert not block[1].training and model[1].training


@pytest.fixture
def normed(monkeypatch):
    """A network with a batch norm and dropout, registered for one test."""
    register(monkeypatch, ARCHITECTURES, "normed", ArchitectureComponent("normed", build_normed))


def _sharp_replicate(dataset, loss="cross_entropy", architecture="normed", **optimizer):
    return _replicate(dataset, loss, architecture, schedule="cosine", weight_decay=0.0, **optimizer)


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
    found, plain = (_sharp_replicate(dataset, **more) for more in (options, {}))
    reference = _sharp_replicate(dataset)
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
    plain, zero = (_sharp_replicate(dataset, **more) for more in ({}, {"sharpness": "asam", "rho": 0.0}))
    assert timeless([plain.train_epoch()]) == timeless([zero.train_epoch()])


def test_both_passes_of_a_step_see_the_batch_though_the_network_changes_it_in_place(dataset, normed):
    apart, in_place = (_sharp_replicate(dataset, sharpness="sam") for _ in range(2))
    apart.model.register_forward_pre_hook(lambda _, given: (given[0] - 0.3,))
    in_place.model.register_forward_pre_hook(lambda _, given: (given[0].sub_(0.3),))
    apart.train_epoch()
    in_place.train_epoch()
    assert all(torch.equal(a, b) for a, b in zip(apart.model.parameters(), in_place.model.parameters(), strict=True))


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
    plain, sharp = (_sharp_replicate(dataset, loss, "mlp", lr=1e-12, **more) for more in ({}, sharp))
    for each in (plain, sharp):
        each.begin_epoch()
        with each.own_randomness():
            for inputs, targets in each.training_batches():
                each._step(inputs, targets)
    mine, theirs = plain.loss.state_dict(), sharp.loss.state_dict()
    assert mine and mine.keys() == theirs.keys()
    for key, value in mine.items():
        torch.testing.assert_close(torch.as_tensor(theirs[key]), torch.as_tensor(value))

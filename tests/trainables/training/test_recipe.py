import math

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from trainables.training.recipe import (
    OPTIMIZERS,
    build_optimizer,
    learning_rate,
    learning_rate_factor,
    milestones_reached,
    prepare_gradients,
    replaces_checkpoint,
    setting,
)

MUKHOTI = {"name": "sgd", "lr": 0.1, "schedule": "step", "milestones": [150, 250], "decay": 0.1, "recipe_epochs": 350}
SELECTIVE = {**MUKHOTI, "milestones": [60, 120, 160], "decay": 0.2, "recipe_epochs": 200}


PAPERS = {
    "mukhoti CIFAR": {**MUKHOTI, "momentum": 0.9, "weight_decay": 5e-4, "gradient_clip": 2.0, "reduction": "sum"},
    "mukhoti Tiny-ImageNet": {**MUKHOTI, "milestones": [40, 60], "recipe_epochs": 100, "batch_size": 64},
    "mukhoti 20 Newsgroups": {"name": "adam", "lr": 1e-3, "recipe_epochs": 50, "checkpoint": "best_val_accuracy"},
    "mukhoti SST": {"name": "adagrad", "lr": 0.05, "weight_decay": 1e-4, "checkpoint": "best_val_accuracy"},
    "posterior CIFAR": {**MUKHOTI, "milestones": [80, 150], "recipe_epochs": 200},
    "posterior SVHN": {**MUKHOTI, "milestones": [25, 40], "recipe_epochs": 50},
    "selective CIFAR": {**SELECTIVE, "checkpoint": "best_val_nll", "checkpoint_after": 40},
    "selective Tiny-ImageNet": {
        "name": "sgd",
        "lr": 1e-4,
        "schedule": "cosine",
        "recipe_epochs": 90,
        "batch_size": 256,
        "checkpoint": "best_val_nll",
        "checkpoint_after": 20,
    },
}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_papers_recipe_is_valid_and_shrinks_to_a_rehearsal(paper):
    settings = PAPERS[paper]
    build_optimizer(nn.Linear(2, 2), settings)
    full = int(settings.get("recipe_epochs", 25))
    short = max(5, full // 10)
    for epoch in range(short):
        expected = learning_rate(settings, epoch * full / short, full)
        assert learning_rate(settings, epoch, short) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("milestones", "decay", "length"),
    [
        ((150, 250), 0.1, 350),
        ((40, 60), 0.1, 100),
        ((80, 150), 0.1, 200),
        ((25, 40), 0.1, 50),
        ((60, 120, 160), 0.2, 200),
        ((60, 120, 160), 0.2, 250),
    ],
)
def test_the_papers_step_schedules_equal_multi_step_lr(milestones, decay, length):
    settings = {"name": "sgd", "lr": 0.1, "schedule": "step", "milestones": milestones, "decay": decay}
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    reference = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, decay)
    for epoch in range(length):
        assert learning_rate(settings, epoch, length) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()


def test_milestones_may_be_fractions_of_the_run():
    settings = {"name": "sgd", "schedule": "step", "milestones": [0.5, 0.75]}
    assert [milestones_reached(settings, epoch, 8) for epoch in range(8)] == [0, 0, 0, 0, 1, 1, 2, 2]


def test_cosine_equals_torch_and_ends_at_its_final_factor():
    settings = {"name": "sgd", "lr": 1e-4, "schedule": "cosine"}
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-4)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 90)
    for epoch in range(90):
        assert learning_rate(settings, epoch, 90) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        reference.step()
    assert learning_rate_factor({**settings, "final_factor": 0.2}, 90, 90) == pytest.approx(0.2)


def test_warm_up_rises_linearly_then_hands_over():
    settings = {"name": "sgd", "lr": 1.0, "schedule": "cosine", "warmup_epochs": 5, "warmup_start": 0.1}
    assert learning_rate(settings, 0, 25) == pytest.approx(0.1)
    assert learning_rate(settings, 2.5, 25) == pytest.approx(0.55)
    assert learning_rate(settings, 5, 25) == pytest.approx(1.0)
    assert learning_rate(settings, 15, 25) == pytest.approx(0.5)
    assert learning_rate(settings, 25, 25) == pytest.approx(0.0, abs=1e-12)


@given(
    schedule=st.sampled_from(["constant", "cosine", "step"]),
    warmup=st.floats(0, 20),
    share=st.floats(0, 1),
    length=st.integers(1, 400),
)
def test_the_factor_stays_within_zero_and_one(schedule, warmup, share, length):
    settings = {"name": "sgd", "schedule": schedule, "warmup_epochs": warmup, "recipe_epochs": 350}
    assert 0 <= learning_rate_factor(settings, share * length, length) <= 1 + 1e-12


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_descriptions_agree_with_what_is_built(name):
    optimizer = build_optimizer(nn.Linear(2, 2), {"name": name})
    group = optimizer.param_groups[0]
    for key in ("lr", "momentum", "weight_decay", "nesterov"):
        if OPTIMIZERS[name].hyperparameter(key) is not None:
            assert group[key] == setting({"name": name}, key), key
    if name.startswith("adam"):
        assert group["betas"] == (0.9, 0.999)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"name": "sdg"}, "did you mean 'sgd'"),
        ({"name": "sgd", "lr": 0}, "lr = 0 is outside"),
        ({"name": "sgd", "moment": 0.9}, "did you mean 'momentum'"),
        ({"name": "sgd", "nesterov": True, "momentum": 0.0}, "nesterov needs momentum"),
        ({"name": "sgd", "milestones": [250, 150]}, "must be in ascending order"),
        ({"name": "sgd", "milestones": [150, 250], "recipe_epochs": 200}, "within recipe_epochs"),
        ({"name": "sgd", "schedule": "cosin"}, "did you mean 'cosine'"),
        ({"name": "adam", "gradient_clip": 0.0}, "leave it out"),
    ],
)
def test_bad_recipes_say_what_is_wrong(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_optimizer(nn.Linear(2, 2), settings)


def gradients(seed):
    torch.manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(2))]
    for parameter in parameters[:2]:
        parameter.grad = torch.randn_like(parameter)
    return parameters


def norm(parameters):
    return math.sqrt(sum(float(p.grad.square().sum()) for p in parameters if p.grad is not None))


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_summed_and_clipped(seed):
    parameters = gradients(seed)
    before = norm(parameters)
    prepare_gradients(parameters, {"name": "sgd"}, 128)
    assert norm(parameters) == before
    prepare_gradients(parameters, {"name": "sgd", "reduction": "sum"}, 128)
    assert norm(parameters) == pytest.approx(128 * before, rel=1e-5)
    prepare_gradients(parameters, {"name": "sgd", "gradient_clip": 2.0}, 128)
    assert norm(parameters) == pytest.approx(2.0, rel=1e-4)
    prepare_gradients(parameters, {"name": "sgd", "gradient_clip": 3.0}, 128)
    assert norm(parameters) == pytest.approx(2.0, rel=1e-4), "smaller gradients are not clipped"


def kept_epoch(settings, values, max_epochs=None):
    kept, best = None, None
    for epoch, value in enumerate(values, start=1):
        if replaces_checkpoint(settings, epoch, max_epochs or len(values), value, best):
            kept, best = epoch, value
    return kept


def test_checkpoint_rules():
    losses = [0.9, 0.1, 0.8, 0.3, 0.5, 0.3]
    assert kept_epoch({"name": "sgd"}, losses) == 6
    assert kept_epoch({"name": "sgd", "checkpoint": "best_val_nll"}, losses) == 2
    # the minimum before the threshold must not block later ones
    assert kept_epoch({"name": "sgd", "checkpoint": "best_val_nll", "checkpoint_after": 2}, losses) == 4
    assert kept_epoch({"name": "sgd", "checkpoint": "best_val_accuracy"}, losses) == 1
    assert kept_epoch({"name": "sgd", "checkpoint": "best_val_nll"}, [math.nan, 0.2, math.nan]) == 2

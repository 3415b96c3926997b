"""Mixed samples against a plain loop with soft targets, their repeatability, and who declines them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.loading import load_spec
from tests.trainables.small_data import small_digits
from tests.trainables.training.lanes.comparison import configuration
from trainables.losses import LOSSES, build_loss
from trainables.training.fine_tuning import Mixing
from trainables.training.lanes.packing import cohort_fault
from trainables.training.loop import Replicate

SEED = 7 + 2**40
CLASSES = 10


@pytest.fixture(scope="module")
def dataset():
    return small_digits()


def replicate(dataset, **values):
    return Replicate(configuration(**values), seed=SEED, dataset=dataset, max_epochs=3)


def naive_batch(kind, alpha, inputs, targets, epoch, batch):
    """The papers' code on one batch, with one-hot targets: mixup-cifar10's and CutMix-PyTorch's."""
    random = np.random.RandomState([SEED & 0xFFFFFFFF, SEED >> 32, epoch, batch])
    random.randint(1)
    order, share = random.permutation(len(inputs)), random.beta(alpha, alpha)
    mixed = inputs.clone()
    if kind == "mixup":
        for i, j in enumerate(order):
            mixed[i] = share * inputs[i] + (1 - share) * inputs[j]
    else:
        height, width = inputs.shape[2:]
        cut_h, cut_w = (int(size * np.sqrt(1.0 - share)) for size in (height, width))
        cy, cx = random.randint(height), random.randint(width)
        y1, y2 = np.clip(cy - cut_h // 2, 0, height), np.clip(cy + cut_h // 2, 0, height)
        x1, x2 = np.clip(cx - cut_w // 2, 0, width), np.clip(cx + cut_w // 2, 0, width)
        for i, j in enumerate(order):
            mixed[i, :, y1:y2, x1:x2] = inputs[j, :, y1:y2, x1:x2]
        share = 1 - (x2 - x1) * (y2 - y1) / (height * width)
    one_hot = functional.one_hot(targets, CLASSES).double()
    return mixed, share * one_hot + (1 - share) * one_hot[order]


def soft(name):
    """Return each loss at soft targets v [N, K] as its paper has it, naive, on log-probabilities."""

    def focal(log_p, v):
        p = log_p.exp()
        return -(v * (1 - p) ** 3.0 * log_p).sum(-1)

    def smoothed(log_p, v):
        return -((v * 0.95 + (1 - v) * 0.05 / (CLASSES - 1)) * log_p).sum(-1)

    return {
        "cross_entropy": lambda log_p, v: -(v * log_p).sum(-1),
        "label_smoothing": smoothed,
        "focal": focal,
        "brier": lambda log_p, v: (log_p.exp() - v).square().sum(-1),
    }[name]


@pytest.mark.parametrize("name", ["cross_entropy", "label_smoothing", "focal", "brier"])
@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_gradients_are_those_of_the_papers_losses_at_soft_targets(dataset, kind, name):
    inputs = torch.rand(9, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    targets, network = torch.arange(9), torch.nn.Linear(64, CLASSES, dtype=torch.float64)
    mixing = Mixing(configuration(name, **{kind: 0.7}), SEED, build_loss(name), dataset)
    for epoch, batch in ((0, 0), (0, 1), (4, 2)):
        found = mixing(inputs, epoch, batch)
        expected, v = naive_batch(kind, 0.7, inputs, targets, epoch, batch)
        torch.testing.assert_close(found, expected)
        value = mixing.loss(network(found.flatten(1)), targets)
        naive = soft(name)(torch.log_softmax(network(expected.flatten(1)), -1), v).mean()
        if name != "brier":  # whose value differs by a constant
            torch.testing.assert_close(value, naive)
        mine, theirs = (torch.autograd.grad(each, network.weight)[0] for each in (value, naive))
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("recipe", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 1.0, "cutmix": 1.0}])
def test_training_repeats_and_resumes_within_an_epoch(dataset, recipe):
    whole, cut = (replicate(dataset, architecture="resnet8", **recipe) for _ in range(2))
    rows = [whole.train_epoch() for _ in range(2)]
    states, steps = [], []

    def after_step():
        steps.append(1)
        if len(steps) == 2:
            states.append(cut.state_dict())
            raise KeyboardInterrupt

    cut.train_epoch()
    steps.clear()
    with pytest.raises(KeyboardInterrupt):
        cut.train_epoch(after_step)
    resumed = replicate(dataset, architecture="resnet8", **recipe)
    resumed.load_state_dict(states[0])
    row = resumed.train_epoch()
    assert {**row, "seconds": 0} == {**rows[1], "seconds": 0}
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, resumed.model.state_dict()[name])


def test_alpha_zero_trains_as_ever(dataset):
    plain, zero, mixed = (replicate(dataset, **each) for each in ({}, {"mixup": 0, "cutmix": 0.0}, {"mixup": 1.0}))
    losses = [each.train_epoch()["train_loss"] for each in (plain, zero, mixed)]
    assert losses[0] == losses[1] != losses[2]
    assert cohort_fault(configuration(mixup=0)) is None


REFUSED = {"kde_xe", "mdca", "mmce", "hessian_trace"}


def test_losses_without_soft_targets_are_refused(dataset):
    assert {name for name in LOSSES if not build_loss(name).takes_soft_targets} == REFUSED
    assert not build_loss("selective_risk", history="epoch").takes_soft_targets
    with pytest.raises(ValueError, match="mixup needs a loss with soft targets, and mmce has none"):
        replicate(dataset, loss="mmce", mixup=0.2)


@pytest.mark.parametrize("name", ["aurc", "selective_risk"])
def test_weights_by_score_do_not_ask_for_targets(name):
    logits = torch.randn(12, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(12) % CLASSES
    loss, log_p = build_loss(name), torch.log_softmax(logits, -1)
    asked = [(targets + shift) % CLASSES for shift in (0, 3)]
    weights = [loss.per_sample(logits, each) / -log_p[torch.arange(12), each] for each in asked]
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize(
    ("table", "loss", "recipe", "sentence"),
    [
        (False, "mmce", {"mixup": {"uniform": [0, 1]}}, "mixup needs a loss with soft targets, and mmce has none"),
        (True, "focal", {"cutmix": 1}, "cutmix needs images"),
    ],
)
def test_a_search_space_is_told_before_it_starts(tmp_path, table, loss, recipe, sentence):
    rows = "\n".join(f"{i},{i % 7},{'ab'[i % 2]}" for i in range(400))
    (tmp_path / "rows.csv").write_text(f"first,second,target\n{rows}\n")
    file = {"name": "table", "file": str(tmp_path / "rows.csv"), "target": "target"}
    values = {
        "dataset": file if table else {"name": "digits"},
        "space": {"loss": loss, "architecture": "mlp", "optimizer": {"name": "sgd", **recipe}},
        "scheduler": {"name": "none", "max_epochs": 1},
        "samples": 3,
    }
    with pytest.raises(InvalidSearchSpace, match=sentence):
        prepare_dataset(load_spec(values))

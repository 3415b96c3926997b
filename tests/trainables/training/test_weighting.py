"""Weights of classes and samples in the training loss and its curvature, and balanced sampling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.loading import build_spec
from trainables.curvature import CurvatureSettings
from trainables.datasets import DataSet, load_dataset
from trainables.datasets.base import Split, batches, epoch_order, hash_of_splits
from trainables.losses import build_loss
from trainables.metrics import softmax64
from trainables.training.acceleration import PLAIN, TrainingSettings
from trainables.training.evaluation import EvaluationSettings
from trainables.training.lanes.cohort import Lanes
from trainables.training.loop import Replicate
from trainables.training.weighting import class_weights

BALANCED = TrainingSettings(class_weights="balanced")
NAMED = {"often": 0.5, "seldom": 3.0}


def imbalanced(seed: int = 0, samples: int = 120, weights: bool = True) -> DataSet:
    """Two overlapping classes, one sample in six of the second, with integer weights of the samples if wanted."""
    random = np.random.RandomState(seed)
    targets = torch.from_numpy((np.arange(samples) % 6 == 0).astype(np.int64))
    inputs = torch.from_numpy(random.randn(samples, 3)).float() + targets[:, None]
    own = torch.from_numpy(random.randint(1, 4, samples)).float() if weights else None
    parts = np.array_split(random.permutation(samples), 3)
    train, val, test = (
        Split(inputs[part], targets[part], weights=None if own is None else own[part]) for part in parts
    )
    return DataSet("imbalanced", train, val, test, 2, (3,), hash_of_splits(*parts), class_names=("often", "seldom"))


def replicate(
    dataset: DataSet, training: TrainingSettings = PLAIN, loss: object = "cross_entropy", **recipe
) -> Replicate:
    loss = {"name": loss} if isinstance(loss, str) else loss
    recipe = {"name": "sgd", "lr": 0.3, "momentum": 0.9, "weight_decay": 0.0, "batch_size": 16, **recipe}
    values = {"loss": loss, "architecture": {"name": "mlp", "width": 4, "depth": 1}, "optimizer": recipe}
    return Replicate(values, seed=0, dataset=dataset, max_epochs=4, training=training)


def parameters(trained: Replicate) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(trained.model.parameters()).detach()


@pytest.mark.parametrize("seed", range(5))
def test_balanced_weights_are_those_of_scikit_learn(seed):
    targets = np.random.RandomState(seed).choice(4, 200, p=[0.6, 0.3, 0.0, 0.1])
    split = Split(torch.zeros(200, 1), torch.from_numpy(targets))
    weights = class_weights(DataSet("drawn", split, split, split, 4, (1,), ""), "balanced")
    expected = compute_class_weight("balanced", classes=np.unique(targets), y=targets)
    np.testing.assert_allclose(weights[np.unique(targets)], expected, rtol=1e-6)


def test_classes_are_weighted_by_name_or_else_by_number():
    assert class_weights(imbalanced(), {"seldom": 3.0}).tolist() == [1.0, 3.0]
    assert class_weights(load_dataset("digits"), {"9": 2.0}).tolist() == [1.0] * 9 + [2.0]
    with pytest.raises(ValueError, match=r"names 'seldon', but .* are often, seldom; did you mean 'seldom'"):
        class_weights(imbalanced(), {"seldon": 3.0})


@pytest.mark.parametrize("given", ["balanced", NAMED])
def test_training_takes_the_steps_of_torchs_weighted_cross_entropy(given):
    dataset = imbalanced(weights=False)
    trained, reference = (replicate(dataset, TrainingSettings(class_weights=given)) for _ in range(2))
    weights = class_weights(dataset, given)
    optimizer = torch.optim.SGD(reference.model.parameters(), lr=0.3, momentum=0.9)
    for _ in range(3):
        losses, sizes = [], []
        for inputs, targets, _ in reference.training_batches():
            loss = functional.cross_entropy(reference.model(inputs), targets, weight=weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses, sizes = [*losses, loss.item()], [*sizes, len(targets)]
        row = trained.train_epoch()
        assert row["train_loss"] == pytest.approx(np.average(losses, weights=sizes), rel=1e-5)
    torch.testing.assert_close(parameters(trained), parameters(reference))
    assert (parameters(trained) - parameters(replicate(dataset, PLAIN))).abs().max() > 0.1


@pytest.mark.parametrize("training", [PLAIN, TrainingSettings(class_weights=NAMED)])
def test_the_first_loss_is_scikit_learns_weighted_log_loss(training):
    dataset = imbalanced()
    begun = replicate(dataset, training, batch_size=len(dataset.train))
    with torch.no_grad():
        probabilities = begun.model(dataset.train.inputs).double().softmax(1).numpy()
    weights, targets = dataset.train.weights.numpy(), dataset.train.targets.numpy()
    weights = weights * (1 if training is PLAIN else np.array([0.5, 3.0])[targets])
    expected = log_loss(targets, probabilities, sample_weight=weights)
    assert begun.train_epoch()["train_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "recipe"),
    [
        ("focal", {}),
        ("brier", {}),
        ("cross_entropy", {"sharpness": "sam"}),
        ({"name": "hessian_trace", "weight": 0.1, "base": "focal"}, {}),
    ],
)
def test_a_weight_of_two_trains_like_a_row_given_twice(loss, recipe):
    dataset = imbalanced()
    rows = torch.repeat_interleave(torch.arange(len(dataset.train)), dataset.train.weights.long())
    repeated = Split(dataset.train.inputs[rows], dataset.train.targets[rows])
    several = DataSet("repeated", repeated, dataset.val, dataset.test, 2, (3,), "")
    once = replicate(dataset, PLAIN, loss, batch_size=len(dataset.train), **recipe)
    twice = replicate(several, PLAIN, loss, batch_size=len(rows), **recipe)
    for _ in range(3):
        assert once.train_epoch()["train_loss"] == pytest.approx(twice.train_epoch()["train_loss"], rel=1e-4)
    torch.testing.assert_close(parameters(once), parameters(twice), rtol=1e-4, atol=1e-5)


def dense_hessian(trained: Replicate, split: Split, gamma: float, weights: torch.Tensor) -> torch.Tensor:
    """The Hessian [P, P] of the weighted focal loss by all parameters, in float64, by torch.func."""
    network = trained.model.double()
    names, shapes = zip(*((name, p.shape) for name, p in network.named_parameters()), strict=True)
    start = parameters(trained)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        pieces = flat.split([shape.numel() for shape in shapes])
        held = {name: piece.view(shape) for name, piece, shape in zip(names, pieces, shapes, strict=True)}
        log_p = torch.func.functional_call(network, held, split.inputs.double()).log_softmax(1)
        log_p = log_p[torch.arange(len(split)), split.targets]
        values = -((1 - log_p.exp()) ** gamma) * log_p
        return (weights * values).sum() / weights.sum()

    return torch.func.hessian(loss)(start)


@pytest.mark.parametrize(("loss", "gamma"), [("cross_entropy", 0), ({"name": "focal", "gamma": 2.0}, 2)])
def test_curvature_is_that_of_the_weighted_loss(loss, gamma):
    trained = replicate(imbalanced(), TrainingSettings(class_weights=NAMED), loss)
    trained.train_epoch()
    val = trained.dataset.val
    # batches of 7: their own weights add up to different sums, and only the whole is normalised
    curvature = CurvatureSettings(samples=None, batch_size=7, lanczos_steps=60)
    row = trained.evaluate(EvaluationSettings(curvature=curvature, bootstrap=0), "end").rows[0]
    on_val, plain = (
        dense_hessian(trained, split, power, split.weights * factors[split.targets])
        for split, power, factors in [
            (val, gamma, torch.tensor([0.5, 3.0])),
            (replace(val, weights=torch.ones(len(val))), 0, torch.ones(2)),
        ]
    )
    for column, hessian in {"hessian_training": on_val, "hessian_cross_entropy": plain}.items():
        assert row[f"{column}_trace"] == pytest.approx(float(hessian.trace()), rel=1e-4)
        assert row[f"{column}_lambda_max"] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-4)


def test_weights_change_the_loss_and_the_ece_that_is_computed_by_hand():
    dataset = imbalanced()
    plain, weighted = replicate(imbalanced(weights=False)), replicate(dataset, BALANCED)
    rows = [trained.train_epoch() for trained in (plain, weighted) for _ in range(3)]
    assert abs(rows[2]["train_loss"] - rows[5]["train_loss"]) > 0.1
    settings = EvaluationSettings(bins=8, bootstrap=0, posthoc=({"name": "temperature"},))
    unweighted, measured = (trained.evaluate(settings, "end") for trained in (plain, weighted))
    assert not any("weighted" in column for row in unweighted.rows for column in row)
    for row in measured.rows:
        logits, targets = measured.logits[row["split"]], measured.targets[row["split"]]
        own = dataset.splits[row["split"]].weights.numpy()
        for temperature, prefix in [(1, ""), (row["posthoc_temperature_temperature"], "posthoc_temperature_")]:
            p = softmax64(logits / temperature)
            confidence, right = p.max(1), p.argmax(1) == targets
            for weights, column in [(np.ones(len(own)), "ece"), (own, "weighted_ece")]:
                bins = np.ceil(confidence * 8)
                gaps = [abs(weights[bins == b] @ (confidence - right)[bins == b]) for b in range(1, 9)]
                assert row[prefix + column] == pytest.approx(sum(gaps) / weights.sum())
            expected = log_loss(targets, p, sample_weight=own, labels=[0, 1])
            assert row[f"{prefix}weighted_nll"] == pytest.approx(expected)
    assert abs(measured.rows[1]["ece"] - unweighted.rows[1]["ece"]) > 0.02


def test_a_balanced_sampler_draws_every_class_equally_often():
    dataset = replicate(imbalanced(), TrainingSettings(sampler="balanced")).dataset
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.cat([y for _, y, _ in batches(dataset.train, 16, generator)]) for _ in range(500)]
    assert {len(epoch) for epoch in drawn} == {len(dataset.train)}
    share, draws = float(torch.stack(drawn).float().mean()), 500 * len(dataset.train)
    assert abs(share - 0.5) < 4 * 0.5 / draws**0.5
    orders = torch.stack([epoch_order(dataset.train, generator) for _ in range(500)])
    counts = torch.bincount(orders.flatten())[dataset.train.targets == 1]
    # each of n samples of a class has the probability 1/(2n) in every draw
    assert (counts - counts.double().mean()).abs().max() < 5 * counts.double().mean() ** 0.5
    assert not dataset.val.balanced


def test_lanes_and_losses_of_whole_batches_refuse_weights():
    with pytest.raises(ValueError, match="cannot train as lanes"):
        Lanes([replicate(imbalanced()) for _ in range(2)])
    with pytest.raises(ValueError, match="mmce is a function of the whole batch"):
        replicate(imbalanced(), PLAIN, "mmce")
    with pytest.raises(TypeError, match="aurc is a function of the whole batch"):
        build_loss("aurc")(torch.zeros(2, 2), torch.tensor([0, 1]), torch.ones(2))


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"training.class_weights": {"10": 2}}, ["training.class_weights"]),
        ({"objective": {"metric": "val_weighted_ece"}}, ["objective"]),
        ({"space.loss": {"grid": ["focal", "mmce", "hessian_trace", "aurc"]}}, ["space.loss", "space.loss"]),
        ({"space.optimizer.mixup": 0.2}, ["space.loss"]),
        ({"replicates": {"count": 2, "packing": "lanes"}}, ["replicates.packing"]),
        ({}, []),
    ],
)
def test_what_cannot_be_weighted_is_refused_before_a_start(changes, paths):
    space = {"loss": "focal", "architecture": {"name": "mlp", "width": 8}, "optimizer": {"name": "sgd"}}
    document = {"dataset": "digits", "scheduler": {"name": "none", "max_epochs": 1}, "samples": 4, "space": space}
    document["training"] = {"class_weights": "balanced"}
    for path, value in changes.items():
        part = document
        *keys, last = path.split(".")
        for key in keys:
            part = part[key]
        part[last] = value
    spec = build_spec(document)
    if not paths:
        prepare_dataset(spec)
        return
    with pytest.raises(InvalidSearchSpace) as caught:
        prepare_dataset(spec)
    assert [fault.path for fault in caught.value.faults] == paths

"""A lane of a cohort ends where its configuration ends alone, whoever its neighbours are and whenever they come."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainables.training.lanes.comparison import configuration, digits, timeless, train_both
from tests.trainables.training.lanes.filling import AMPLIFIES, alone, check_close, of_every_loss, same_bits, together
from tests.trainables.training.lanes.test_equal_to_alone import HESSIAN_TRACES, LOSS_CASES, OPTIMIZERS
from trainables.datasets import load_dataset
from trainables.datasets.image_stream import CropAndFlip
from trainables.training.lanes.cohort import Cohort, Lanes
from trainables.training.loop import Replicate

SMALL_MLP, SMALL_RESNET = {"name": "mlp", "width": 20}, {"name": "resnet8", "width": 0.25}


def _every_loss_in_float64(architecture, epochs, width):
    data, values = digits(torch.float64), of_every_loss(architecture)
    expected = alone(values, data, epochs)
    check_close(expected, together(values, data, epochs, width=width, seed=0))


def test_every_loss_in_mixed_cohorts_in_float64(double):
    _every_loss_in_float64(SMALL_MLP, 2, 7)


def test_a_loss_that_amplifies_rounding_over_one_epoch_in_float64(double):
    values = [each for each in of_every_loss(SMALL_MLP) if each["loss"]["name"] == AMPLIFIES]
    data = digits(torch.float64)
    assert values
    check_close(alone(values, data, 1), together(values, data, 1, width=2, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [SMALL_MLP, SMALL_RESNET], ids=str)
def test_every_loss_over_nine_epochs_in_float64(double, architecture):
    _every_loss_in_float64(architecture, 9, 7)


def test_the_bits_of_a_lane_do_not_depend_on_neighbours_places_or_width():
    data, values = digits(), of_every_loss(SMALL_MLP)
    first = together(values, data, 2, width=7, seed=0)
    assert same_bits(first, together(values, data, 2, width=3, seed=1)) == []


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [{"name": "mlp", "width": 33}, SMALL_MLP, {"name": "mlp"}], ids=str)
def test_the_bits_of_every_composition_over_nine_epochs(architecture):
    data, values = digits(), of_every_loss(architecture)
    first = together(values, data, 9, width=6, seed=0)
    for seed, width in enumerate((1, 2, 5, 16, 27), start=1):
        assert same_bits(first, together(values, data, 9, width=width, seed=seed)) == []


@pytest.mark.slow
def test_the_bits_of_a_mapped_network_do_not_depend_on_neighbours_or_places():
    data, values = digits(), of_every_loss(SMALL_RESNET)
    first = together(values, data, 9, width=5, seed=0)
    for seed in (1, 2):
        assert same_bits(first, together(values, data, 9, width=5, seed=seed)) == []


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_every_optimizer_in_float64(double, optimizer):
    values = [configuration("focal", SMALL_MLP, **optimizer, weight_decay=1e-3 * number) for number in range(3)]
    for number, each in enumerate(values):
        each["optimizer"]["lr"] *= 1 + number
    data = digits(torch.float64)
    check_close(alone(values, data, 3), together(values, data, 3, width=2, seed=0))


@pytest.mark.parametrize(("loss", "architecture"), HESSIAN_TRACES, ids=str)
def test_losses_with_a_trace_in_float64(double, loss, architecture):
    values = [configuration({**loss, "weight": loss["weight"] * (1 + n)}, architecture) for n in range(3)]
    data = digits(torch.float64)
    check_close(alone(values, data, 2), together(values, data, 2, width=2, seed=1))


def test_whole_numbers_as_hyperparameters_are_a_value_a_lane(double):
    values = [configuration({"name": "focal", "gamma": gamma}, SMALL_MLP) for gamma in (0, 1, 2.0, 3)]
    data = digits(torch.float64)
    check_close(alone(values, data, 2), together(values, data, 2, width=4, seed=0))


@pytest.mark.parametrize("architecture", [SMALL_MLP, SMALL_RESNET], ids=str)
def test_a_lane_that_is_not_finite_spoils_no_other(architecture):
    few = LOSS_CASES[:: 4 if architecture == SMALL_MLP else 12]
    calm = [configuration(loss, architecture, lr=0.01) for loss in few]
    wild = [configuration(loss, architecture, lr=1e30, momentum=0.99) for loss in ("cross_entropy", "focal")]
    data, others = digits(), [configuration("focal", architecture, lr=0.02) for _ in wild]
    beside_wild = together([*calm, *wild], data, 2, width=12, seed=0)
    beside_calm = together([*calm, *others], data, 2, width=12, seed=0)
    assert all(not math.isfinite(rows[-1]["val_nll"]) for _, rows in beside_wild[len(calm) :])
    assert same_bits(beside_wild[: len(calm)], beside_calm[: len(calm)]) == []


def test_augmentation_and_dropout_are_the_lanes_own(double):
    data = digits(torch.float64)
    data = replace(data, train=replace(data.train, augmentation=CropAndFlip(padding=1)))
    network = {"name": "wide_resnet", "depth": 10, "width": 0.25, "dropout": 0.4}
    values = [configuration("focal", network, lr=0.01 * (1 + n)) for n in range(3)]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = together(values, data, 2, width=4, seed=2)
    assert torch.equal(torch.rand(3), expected), "idle lanes leave the global generator alone"
    check_close(alone(values, data, 2), found)


def test_a_lane_that_left_continues_alone_and_may_join_again(double):
    data, values = digits(torch.float64), configuration("focal", SMALL_MLP, schedule="cosine")
    expected = alone([values], data, 4)
    replicate = Replicate(values, seed=0, dataset=data, max_epochs=4)
    cohort = Cohort(replicate, 2)
    cohort.join(replicate)
    rows = cohort.train_epoch()
    cohort.leave(replicate)
    rows.append(replicate.train_epoch())
    other = Cohort(replicate, 3)
    other.join(replicate)
    rows += [*other.train_epoch(), *other.train_epoch()]
    other.leave(replicate)
    check_close(expected, [(replicate, timeless(rows))])


def test_what_is_saved_of_a_lane_is_its_own_and_restores_it():
    data, values = digits(), configuration({"name": "adafocal"}, SMALL_MLP)
    lanes = [Replicate(values, seed=seed, dataset=data, max_epochs=4) for seed in range(3)]
    cohort = Lanes(lanes)
    cohort.train_epoch()
    cohort.settle()
    state = lanes[1].state_dict()
    assert all(t.untyped_storage().nbytes() <= t.nbytes for t in state["model"].values())
    restored = Replicate(values, seed=1, dataset=data, max_epochs=4)
    restored.load_state_dict(state)
    again = Lanes([restored])
    expected, found = timeless(cohort.train_epoch())[1], timeless(again.train_epoch())[0]
    assert found == expected


def test_a_full_cohort_takes_no_more():
    replicate = Replicate(configuration(), seed=0, dataset=digits(), max_epochs=1)
    cohort = Cohort(replicate, 1)
    cohort.join(replicate)
    with pytest.raises(IndexError, match="cohort is full"):
        cohort.join(replicate)


SEEDS, EPOCHS = 24, 8
METRICS = ("train_loss", "val_nll", "val_accuracy", "val_ece")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "architecture"),
    [("cross_entropy", "mlp"), ({"name": "focal", "gamma": 3.0}, "mlp"), ("cross_entropy", "resnet8")],
)
def test_final_metrics_are_indistinguishable(loss, architecture):
    """Paired by seed: no shift beyond chance (|t| < 3.5), and one that is small beside the scatter of the seeds."""
    values = configuration(loss, architecture, batch_size=128)
    _, _, alone, lanes = train_both(values, load_dataset("digits"), EPOCHS, seeds=range(SEEDS), max_epochs=EPOCHS)
    for metric in METRICS:
        one, other = (np.array([row[metric] for row in rows[-SEEDS:]]) for rows in (alone, lanes))
        difference = other - one
        scatter, error = one.std(ddof=1), difference.std(ddof=1) / np.sqrt(SEEDS)
        print(
            f"{metric}: {one.mean():.5f} ± {scatter:.5f} alone, lanes differ by {difference.mean():.2g} ± {error:.2g}"
        )
        assert abs(difference.mean()) <= 3.5 * error + 1e-9
        assert abs(difference.mean()) < 0.1 * scatter

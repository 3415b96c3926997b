"""The same configurations alone, and in cohorts that are filled and refilled at random."""

from __future__ import annotations

import random

import pytest
import torch

from tests.trainables.training.lanes.comparison import configuration, distance, timeless
from tests.trainables.training.lanes.test_equal_to_alone import LOSS_CASES
from trainables.training.lanes.cohort import Cohort
from trainables.training.loop import Replicate

RECIPES = [
    {"lr": 0.03, "schedule": "cosine"},
    {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.0, "schedule": "step", "gradient_clip": 1.0},
    {"lr": 0.02, "momentum": 0.0, "weight_decay": 1e-3, "schedule": "constant", "warmup_epochs": 1},
    {"lr": 0.01, "reduction": "sum", "gradient_clip": 2.0, "checkpoint": "best_val_nll"},
    {"lr": 0.03, "schedule": "inverse_sqrt", "warmup_epochs": 1},
]


AMPLIFIES = "kde_xe"  # its bandwidths of 1e-5 multiply rounding by 1e5 a step, after the first epoch


def of_every_loss(architecture):
    """A configuration of every kind of loss on logits, each with one of several recipes."""
    return [
        configuration(loss, architecture, **RECIPES[number % len(RECIPES)]) for number, loss in enumerate(LOSS_CASES)
    ]


def alone(configurations, data, epochs, device="cpu"):
    """Return each configuration's replicate and rows after training by itself."""
    found = []
    for seed, values in enumerate(configurations):
        replicate = Replicate(values, seed=seed, dataset=data, max_epochs=epochs, device=device)
        found.append((replicate, timeless([replicate.train_epoch() for _ in range(epochs)])))
    return found


def together(configurations, data, epochs, *, width, seed, device="cpu"):
    """Return the same after training as lanes that join in a random order, some epochs apart."""
    chance = random.Random(seed)
    waiting = list(range(len(configurations)))
    chance.shuffle(waiting)
    cohort, inside, rows = None, {}, {}
    while waiting or (cohort is not None and cohort.lanes):
        while (
            waiting
            and (cohort is None or len(cohort.lanes) < cohort.width)
            and (cohort is None or not cohort.lanes or chance.random() < 0.7)
        ):
            number = waiting.pop()
            replicate = Replicate(configurations[number], seed=number, dataset=data, max_epochs=epochs, device=device)
            cohort = cohort or Cohort(replicate, width)
            cohort.join(replicate)
            inside[number], rows[number] = replicate, []
        numbers = {id(replicate): number for number, replicate in inside.items()}
        lanes = [numbers[id(replicate)] for replicate in cohort.lanes]
        for number, row in zip(lanes, cohort.train_epoch(), strict=True):
            rows[number].append(row)
        for number in lanes:
            if inside[number].epoch == epochs:
                cohort.leave(inside[number])
    return [(inside[number], timeless(rows[number])) for number in range(len(configurations))]


def same_bits(left, right):
    """Return the losses of the configurations whose weights, optimisers or rows differ in any bit."""
    pairs = zip(left, right, strict=True)
    return [a[0].loss.name for a, b in pairs if distance([a[0]], [b[0]]) != 0.0 or not same_rows(a[1], b[1])]


def same_rows(left, right):
    return repr(left) == repr(right)  # not-a-number is itself here


def check_close(expected, found, tolerance=1e-8):
    """Assert that pairs of a replicate and its rows are equal up to rounding."""
    for (one, rows), (other, lane_rows) in zip(expected, found, strict=True):
        if one.loss.name == AMPLIFIES and len(rows) > 1:
            continue
        assert distance([one], [other]) < tolerance, one.loss.name
        for row, lane_row in zip(rows, lane_rows, strict=True):
            assert row == pytest.approx(lane_row, rel=tolerance, abs=1e-12), one.loss.name
        torch.testing.assert_close(other.loss.state_dict(), one.loss.state_dict(), rtol=tolerance, atol=1e-12)

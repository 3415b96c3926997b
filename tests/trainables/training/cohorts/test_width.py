"""How many lanes: the fewest that are hardly slower than the best, none where training alone is as fast."""

from __future__ import annotations

import json

import pytest

from tests.trainables.training.lanes.comparison import configuration, digits
from trainables.training.acceleration import PLAIN
from trainables.training.cohorts import cohort_fault, cohort_key
from trainables.training.cohorts.width import best_width, chosen_width, is_promising, measured_width
from trainables.training.loop import Replicate


@pytest.mark.parametrize(
    ("seconds", "width"),
    [
        ({0: 1.0, 4: 0.5, 8: 0.3, 16: 0.29}, 8),
        ({0: 1.0, 4: 0.5, 8: 0.3, 16: 0.2}, 16),
        ({0: 1.0, 4: 0.97}, 0),
        ({0: 1.0, 4: 2.0}, 0),
        ({0: 1.0}, 0),
        ({0: 1.0, 4: 0.96, 8: 0.94}, 4),
        ({0: 1.0, 4: 1.1, 8: 0.9}, 8),
    ],
)
def test_the_best_width(seconds: dict[int, float], width: int) -> None:
    assert best_width(seconds) == width


@pytest.mark.parametrize(
    ("seconds", "on"),
    [
        ({0: 1.0, 4: 1.05}, True),
        ({0: 1.0, 4: 1.2}, False),
        ({0: 1.0, 4: 0.5, 8: 0.4}, True),
        ({0: 1.0, 4: 0.5, 8: 0.49}, False),
    ],
)
def test_wider_cohorts_are_tried_while_they_gain(seconds: dict[int, float], on: bool) -> None:
    assert is_promising(seconds) == on


def test_what_was_measured_is_not_measured_again(tmp_path) -> None:
    values, data = configuration("focal", {"name": "mlp", "width": 8}), digits()

    def build(seed, few):
        return Replicate(values, seed=seed, dataset=few, max_epochs=1)

    def never(seed, few):
        raise AssertionError("measured again")

    rest = {"most": 4, "processes": 2, "choices": tmp_path}
    first = chosen_width(build, values, data, "cpu", PLAIN, **rest)
    assert first in (0, 4) and chosen_width(never, values, data, "cpu", PLAIN, **rest) == first
    assert json.loads(next(tmp_path.glob("*.json")).read_text())["answer"] == str(first)


def test_a_sweep_of_one_lane_has_no_cohort() -> None:
    values, data = configuration("focal", {"name": "mlp", "width": 8}), digits()
    assert measured_width(lambda seed: Replicate(values, seed=seed, dataset=data, max_epochs=1), "cpu", 1) == 0


def test_lanes_of_a_cohort_agree_in_what_decides_their_shapes() -> None:
    mlp = configuration("focal")
    same = [
        configuration({"name": "selective_risk", "coverage": 0.5}, lr=0.3, momentum=0.1, schedule="step"),
        configuration("focal", gradient_clip=1.0, weight_decay=0.0),
    ]
    other = [
        configuration("focal", {"name": "mlp", "width": 7}),
        configuration("focal", batch_size=7),
        configuration("focal", nesterov=True),
        configuration("focal", name="adam", momentum=None),
        configuration("hessian_trace"),
        {**mlp, "dataset": {"name": "digits", "noise": 0.1}},
    ]
    assert {cohort_key(each) for each in (mlp, *same)} == {cohort_key(mlp)}
    assert len({cohort_key(each) for each in (mlp, *other)}) == 1 + len(other)


def test_what_cannot_be_a_lane_says_why() -> None:
    assert cohort_fault(configuration("focal")) is None
    assert "your own loss" in (cohort_fault(configuration("mine:loss")) or "")
    tree = cohort_fault(configuration("focal", "tree_lstm"))
    assert tree is not None and cohort_key(configuration("focal", "tree_lstm")) is None

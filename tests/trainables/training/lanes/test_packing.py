"""Packing and the number of lanes are rules or measurements; measuring changes nothing that is trained."""

from __future__ import annotations

import json

import pytest
import torch

from tests.trainables.training.lanes.comparison import configuration, digits, pair, timeless
from trainables.training.acceleration import PLAIN
from trainables.training.lanes import packing
from trainables.training.lanes.packing import (
    AUTO,
    LANES,
    SEQUENTIAL,
    Sequential,
    best_width,
    chosen_packing,
    chosen_width,
    cohort_fault,
    cohort_key,
    is_promising,
    measured_width,
    seconds_of_widths,
)
from trainables.training.loop import Replicate


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


DATA = digits()


@pytest.fixture(autouse=True)
def nothing_measured_yet(monkeypatch):
    monkeypatch.setattr(packing, "_choices", {})


def _choose(values=None, asked=AUTO, seeds=(1, 2)):
    values = values or configuration()
    built = []

    def build(seed, data):
        built.append(len(data.train))
        return Replicate(values, seed=seed, dataset=data, max_epochs=3)

    return chosen_packing(asked, build, values, seeds, DATA, "cpu"), built


def _measure(monkeypatch, lanes, sequential):
    calls = []

    def measured(build, device, widths):
        calls.append(device)
        (width,) = widths
        for lane in range(width):
            build(lane)
        return {0: sequential, width: lanes}

    monkeypatch.setattr(packing, "seconds_of_widths", measured)
    return calls


def test_a_rule_is_not_measured():
    assert _choose(asked=LANES) == (LANES, [])


@pytest.mark.parametrize(("lanes", "sequential", "answer"), [(1.0, 2.0, LANES), (2.0, 1.0, SEQUENTIAL)])
def test_auto_takes_the_faster_and_keeps_the_answer(monkeypatch, lanes, sequential, answer):
    calls = _measure(monkeypatch, lanes, sequential)
    assert _choose() == (answer, [160, 160]), "few batches are enough"
    assert _choose(configuration("cross_entropy", lr=0.7)) == (answer, []) and len(calls) == 1
    others = (configuration(batch_size=32), configuration(architecture={"name": "mlp", "width": 7}))
    for number, other in enumerate(others):
        assert _choose(other)[0] == answer
        assert len(calls) == number + 2
    _choose(seeds=(1, 2, 3))
    assert len(calls) == 4


def test_one_replicate_has_nothing_to_share(monkeypatch):
    calls = _measure(monkeypatch, 1.0, 2.0)
    assert _choose(seeds=(1,)) == (SEQUENTIAL, []) == _choose(seeds=(1,), asked=LANES) and calls == []


@pytest.mark.parametrize("asked", [AUTO, LANES])
def test_an_architecture_that_cannot_be_packed_goes_alone(asked):
    assert _choose(configuration(architecture="tree_lstm"), asked) == (SEQUENTIAL, [])


def test_measuring_leaves_training_and_the_global_generator_alone():
    values = configuration()
    expected, measured = pair(values, DATA, seeds=(1, 2))
    torch.manual_seed(9)
    state = torch.get_rng_state()
    assert _choose(values)[0] in (LANES, SEQUENTIAL)
    assert torch.equal(torch.get_rng_state(), state)
    assert timeless(Sequential(measured).train_epoch()) == timeless(Sequential(expected).train_epoch())


def test_what_cannot_be_mapped_runs_alone(monkeypatch):
    class Refusing:
        def __init__(self, replicates):
            raise RuntimeError("vmap: data-dependent control flow")

    monkeypatch.setattr(packing, "Lanes", Refusing)
    alone, _ = pair(configuration(), DATA, seeds=(1, 2))
    assert seconds_of_widths(lambda lane: alone[lane], "cpu", (2,)).keys() == {0}
    assert best_width({0: 1.0}) == 0


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


@pytest.mark.parametrize(("device", "widest"), [("cpu", 64), ("cuda", 256)])
def test_a_card_takes_more_lanes_than_a_core(monkeypatch: pytest.MonkeyPatch, device: str, widest: int) -> None:
    """Each width is said to be twice as fast as the one before; what is asked for is what would be trained there."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**36, 2**37))
    monkeypatch.setattr(packing, "free_memory", lambda: 2**36)
    monkeypatch.setattr(packing, "seconds_of_widths", lambda _, __, widths: {0: 1.0} | {w: 1 / w for w in widths})
    (replicate, *_), _ = pair(configuration("focal"), digits())
    assert packing.measured_width(lambda _: replicate, device, most=1000) == widest
    for most in (2, 3, 4, 20):
        assert packing.measured_width(lambda _: replicate, device, most=most) == most


def test_a_sweep_of_one_lane_has_no_cohort() -> None:
    values, data = configuration("focal", {"name": "mlp", "width": 8}), digits()
    assert measured_width(lambda seed: Replicate(values, seed=seed, dataset=data, max_epochs=1), "cpu", 1) == 0

"""Packing is a rule or a measurement; measuring changes nothing that is trained."""

from __future__ import annotations

import pytest
import torch

from tests.trainables.training.lanes.comparison import configuration, digits, pair, timeless
from trainables.training.lanes import packing
from trainables.training.lanes.packing import (
    AUTO,
    FUSED,
    SEQUENTIAL,
    Sequential,
    chosen_packing,
    measured_seconds,
    packing_fault,
)
from trainables.training.loop import Replicate

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


def _measure(monkeypatch, fused, sequential):
    calls = []

    def measured(build, device):
        calls.append(device)
        build()
        return fused, sequential

    monkeypatch.setattr(packing, "measured_seconds", measured)
    return calls


@pytest.mark.parametrize("asked", [FUSED, SEQUENTIAL])
def test_a_rule_is_not_measured(asked):
    assert _choose(asked=asked) == (asked, [])


@pytest.mark.parametrize(("fused", "sequential", "answer"), [(1.0, 2.0, FUSED), (2.0, 1.0, SEQUENTIAL)])
def test_auto_takes_the_faster_and_keeps_the_answer(monkeypatch, fused, sequential, answer):
    calls = _measure(monkeypatch, fused, sequential)
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
    assert _choose(seeds=(1,)) == (SEQUENTIAL, []) and calls == []


def test_an_architecture_that_cannot_be_packed_is_refused_or_goes_alone():
    tree = configuration(architecture="tree_lstm")
    assert _choose(tree) == (SEQUENTIAL, [])
    with pytest.raises(ValueError, match=r"tree_lstm cannot be trained with packing = fused: .*; choose sequential"):
        _choose(tree, asked=FUSED)
    assert packing_fault(tree, AUTO) is None and packing_fault(configuration(), FUSED) is None


def test_measuring_leaves_training_and_the_global_generator_alone():
    values = configuration()
    expected, measured = pair(values, DATA, seeds=(1, 2))
    torch.manual_seed(9)
    state = torch.get_rng_state()
    assert _choose(values)[0] in (FUSED, SEQUENTIAL)
    assert torch.equal(torch.get_rng_state(), state)
    assert timeless(Sequential(measured).train_epoch()) == timeless(Sequential(expected).train_epoch())


def test_what_cannot_be_mapped_runs_alone(monkeypatch):
    class Refusing:
        def __init__(self, replicates):
            raise RuntimeError("vmap: data-dependent control flow")

    monkeypatch.setattr(packing, "Lanes", Refusing)
    fused, sequential = measured_seconds(lambda: pair(configuration(), DATA)[0], "cpu")
    assert fused > sequential


def test_each_round_measures_both(monkeypatch):
    seconds = iter([1.0, 1.2, 5.0, 6.0, 3.0, 2.0] + [9.0] * 20)
    monkeypatch.setattr(packing, "_timed", lambda group, device: next(seconds))
    assert measured_seconds(lambda: pair(configuration(), DATA)[0], "cpu") == (3.0, 2.0)


def test_a_clear_lead_ends_the_measurement(monkeypatch):
    seconds = iter([1.0, 2.1])
    monkeypatch.setattr(packing, "_timed", lambda group, device: next(seconds))
    assert measured_seconds(lambda: pair(configuration(), DATA)[0], "cpu") == (1.0, 2.1)

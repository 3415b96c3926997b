"""Recorded steps are the plain ones to the bit, on a recorder that keeps CUDA's rules and needs no card."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.trainables.training.lanes.comparison import configuration, digits, timeless
from trainables.losses import LOSSES, build_loss
from trainables.training.acceleration import PLAIN, TrainingSettings
from trainables.training.graphs import (
    WARM_UP,
    CannotRecordError,
    RecordedSteps,
    changes_between_epochs,
    graphs_fault,
    recorded_steps,
)
from trainables.training.lanes.packing import AUTO, FUSED, SEQUENTIAL, chosen_packing, packing_fault
from trainables.training.loop import Replicate
from trainables.worker.worker import STEPS

GRAPHS = TrainingSettings(graphs=True)
RESNET = {"name": "resnet8", "width": 0.25}
EPOCHS = 3


class Recorder:
    """Keeps to what a CUDA graph does.

    Recording changes no number and draws none; a replay runs the recorded work on the tensors that it was recorded
    with, and leaves its results in the tensors that the recording returned, whatever the parameters hold meanwhile.
    """

    def __init__(self, model):
        self.model, self.asides, self.recordings, self.replays = model, 0, 0, 0

    def aside(self, work):
        self.asides += 1
        return work()

    def record(self, work):
        self.recordings += 1
        state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        random = torch.get_rng_state()
        result = work()
        self.model.load_state_dict(state)
        torch.set_rng_state(random)
        held = {name: p.grad for name, p in self.model.named_parameters()}
        outputs = [result, *held.values()]
        for tensor in outputs:
            tensor.fill_(torch.nan)

        def replay():
            self.replays += 1
            before = {name: p.grad for name, p in self.model.named_parameters()}
            found = [work(), *(p.grad for p in self.model.parameters())]
            for tensor, value in zip(outputs, found, strict=True):
                tensor.copy_(value)
            for name, parameter in self.model.named_parameters():
                parameter.grad = before[name]

        return result, replay


@pytest.fixture(scope="module")
def data():
    return digits()


def _replicate(data, loss="cross_entropy", architecture="mlp", training=PLAIN, **recipe):
    optimizer = {"name": "sgd", "lr": 0.05, "batch_size": 24, "schedule": "cosine", **recipe}
    values = {**configuration(loss, architecture), "optimizer": optimizer}
    return Replicate(values, seed=3, dataset=data, max_epochs=EPOCHS, training=training)


def _recorded(replicate):
    """Put recorded steps, which a CPU would not take, into a replicate; return the recorder."""
    recorder = Recorder(replicate.model)
    replicate._recorded = RecordedSteps([*replicate.model.parameters()], replicate.recipe["batch_size"], recorder)
    return recorder


def _bits(replicate, epochs=EPOCHS):
    rows = timeless([replicate.train_epoch() for _ in range(epochs)])
    return rows, [tensor.tolist() for tensor in replicate.model.state_dict().values()]


CASES = [
    ("cross_entropy", "mlp", {"momentum": 0.9}),
    ("focal", RESNET, {"gradient_clip": 0.5, "reduction": "sum", "nesterov": True}),
    ("adafocal", "mlp", {"name": "adam"}),
    ({"name": "focal_scheduled", "first_switch": 0.3, "second_switch": 0.6}, "mlp", {}),
    ("mmce", {"name": "wide_resnet", "depth": 10, "width": 0.125, "dropout": 0.4}, {}),
]


@pytest.mark.parametrize(("loss", "architecture", "recipe"), CASES, ids=lambda case: str(case)[:30])
def test_recorded_steps_train_the_same_bits_as_plain_ones(data, loss, architecture, recipe):
    plain, graphed = (_replicate(data, loss, architecture, **recipe) for _ in range(2))
    recorder = _recorded(graphed)
    assert _bits(graphed) == _bits(plain)
    full, rest = divmod(len(data.train), plain.recipe["batch_size"])
    assert rest, "the last batch is smaller and takes a plain step"
    assert recorder.asides == WARM_UP and recorder.replays == EPOCHS * full - WARM_UP
    assert recorder.recordings == (EPOCHS if changes_between_epochs(plain.loss) else 1)


def test_a_replicate_that_continues_from_a_checkpoint_records_anew_and_trains_the_same_bits(data):
    whole, first, second = (_replicate(data, "adafocal") for _ in range(3))
    _recorded(first)
    expected = _bits(whole)
    rows = timeless([first.train_epoch()])
    recorder = _recorded(second)
    second.train_epoch()  # of other weights: what is recorded must not be what is loaded
    second.load_state_dict(first.state_dict())
    more, weights = _bits(second, EPOCHS - 1)
    assert (rows + more, weights) == expected and recorder.recordings == 1 + EPOCHS - 1


def test_steps_between_replays_leave_the_recorded_gradients_alone(data):
    replicate = _replicate(data)
    steps = RecordedSteps([*replicate.model.parameters()], 4, Recorder(replicate.model))
    batch = data.train.inputs[:4], data.train.targets[:4]
    for _ in range(WARM_UP + 1):
        steps(replicate._differentiate, *batch)
    recorded = [p.grad for p in replicate.model.parameters()]
    steps(replicate._differentiate, data.train.inputs[:3], data.train.targets[:3])
    assert all(p.grad is not own for p, own in zip(replicate.model.parameters(), recorded, strict=True))
    steps(replicate._differentiate, *batch)
    assert all(p.grad is own for p, own in zip(replicate.model.parameters(), recorded, strict=True))
    steps.forget()
    assert all(p.grad is None for p in replicate.model.parameters())


def test_what_cannot_be_recorded_fails_with_what_to_do(data):
    class Refusing(Recorder):
        def record(self, work):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    replicate = _replicate(data)
    replicate._recorded = RecordedSteps([*replicate.model.parameters()], 24, Refusing(replicate.model))
    with pytest.raises(CannotRecordError, match=r"\(operation not permitted when stream is capturing\); set training"):
        replicate.train_epoch()


def test_what_is_known_to_need_plain_steps_is_refused_before_a_run():
    def fault(loss="cross_entropy", architecture="mlp", settings=GRAPHS):
        return graphs_fault(configuration(loss, architecture), settings)

    assert "cannot be combined with compile = true" in fault(settings=replace(GRAPHS, compile=True))
    assert "cannot train tree_lstm, whose computation depends on each sample" in fault(architecture="tree_lstm")
    assert "cannot train hessian_trace, which draws on the host" in fault({"name": "hessian_trace", "weight": 0.01})
    assert "keeps a state that each step changes" in fault({"name": "selective_risk", "history": "epoch"})
    assert fault("selective_risk") is None and fault(settings=PLAIN) is None
    refused = {name for name in LOSSES if fault(name) is not None}
    assert refused == {"hessian_trace"}
    assert changes_between_epochs(build_loss("adafocal")) and not changes_between_epochs(build_loss("focal"))


def test_lanes_take_plain_steps_so_they_are_refused_or_not_chosen(data):
    values = configuration()
    assert "lanes take plain steps" in packing_fault(values, FUSED, GRAPHS)
    assert chosen_packing(AUTO, lambda *_: pytest.fail("measured"), values, (1, 2), data, "cpu", GRAPHS) == SEQUENTIAL


def test_a_cpu_takes_plain_steps_and_the_measured_memory_is_that_of_a_recording(data):
    replicate = _replicate(data, training=GRAPHS)
    assert replicate._recorded is None and recorded_steps(replicate.model, 4, PLAIN, torch.device("cuda")) is None
    assert timeless([replicate.train_epoch()]) == timeless([_replicate(data).train_epoch()])
    assert STEPS > WARM_UP, "the share of a GPU is measured on steps of which one is recorded"

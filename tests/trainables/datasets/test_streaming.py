"""Batches that come from the host are the batches of data on the device; what fails in the thread fails here."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from tests.trainables.datasets.test_sharing import images
from tests.trainables.training.lanes.comparison import configuration, timeless
from trainables.datasets.base import batches, evaluation_batches
from trainables.datasets.streaming import AHEAD, Copy, ahead, sent, streamed
from trainables.training.acceleration import TrainingSettings
from trainables.training.evaluation import EvaluationSettings
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings


@pytest.mark.parametrize("augmented", [True, False])
@pytest.mark.parametrize("batch_size", [1, 7, 20])
def test_streamed_batches_are_the_same(augmented, batch_size):
    split = images(20).train
    split = split if augmented else replace(split, augmentation=None)
    streamed = split.to("cpu", streamed=True)
    own, theirs = ([*batches(s, batch_size, torch.Generator().manual_seed(4))] for s in (split, streamed))
    assert len(own) == len(theirs)
    for one, other in zip(own, theirs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for one, other in zip(evaluation_batches(split, 6), evaluation_batches(streamed, 6), strict=True):
        assert torch.equal(one[0], other[0])
    chosen = torch.tensor([3, 1, 3])
    assert torch.equal(split.select(chosen)[0], streamed.select(chosen)[0])


def test_inputs_stay_where_they_are_and_targets_move():
    moved = images(20).to("meta", streamed=True)
    assert moved.train.inputs.device.type == "cpu" and moved.train.targets.device.type == "meta"
    assert moved.train.prepare(moved.train.inputs[:2]).device.type == "meta"
    assert images(20).nbytes == 3 * 20 * (3 * 4 * 4 + 8)


def test_work_runs_ahead_in_order_and_not_further():
    begun = []

    def work(item):
        begun.append(item)
        return item * item, threading.current_thread() is threading.main_thread()

    results = ahead(work, range(10))
    for number, (square, in_main) in enumerate(results):
        assert square == number * number and not in_main
        assert len(begun) <= number + 1 + AHEAD
    assert begun == [*range(10)] and [*ahead(work, [])] == []


def test_an_error_of_the_thread_is_raised_and_leaving_early_ends_it():
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        [*ahead(lambda item: 1 / item, [2, 1, 0])]
    results = ahead(lambda item: item, range(100))
    assert next(results) == 0
    results.close()
    assert threading.active_count() == before


class LateCopier:
    """A device that lags behind: nothing is copied before the host waits for it, or for everything at the end."""

    def __init__(self):
        self.buffers, self.waiting, self.awaited = [], [], []

    def buffer(self, like, rows):
        self.buffers.append(torch.empty((rows, *like.shape[1:]), dtype=like.dtype))
        return self.buffers[-1]

    def send(self, source):
        self.waiting.append((Copy(torch.full_like(source, 255), None), source))
        return self.waiting[-1][0]

    def wait_for(self, copy):
        while any(waiting is copy for waiting, _ in self.waiting):
            done, source = self.waiting.pop(0)
            done.tensor.copy_(source)

    def received(self, copy):
        self.awaited.append(copy.tensor)
        return copy.tensor


@pytest.mark.parametrize("samples", [0, 1, 6, 20, 21])
def test_no_buffer_is_written_before_it_was_copied_and_every_copy_is_awaited(samples):
    inputs = torch.randint(0, 200, (max(1, samples), 3, 4), dtype=torch.uint8)
    rows = torch.randperm(samples).split(6) if samples else ()
    copier = LateCopier()
    found = [*streamed(inputs, rows, torch.device("cpu"), copier)]
    assert len(copier.buffers) == len(copier.waiting) == min(AHEAD, len(rows)), "buffers take turns, copies lag behind"
    if copier.waiting:
        copier.wait_for(copier.waiting[-1][0])
    assert [id(batch) for batch in found] == [id(batch) for batch in copier.awaited]
    assert len(found) == len(rows)
    assert all(torch.equal(batch, inputs[chosen]) for batch, chosen in zip(found, rows, strict=True))


def test_batches_of_the_host_are_taken_ahead_and_each_is_sent_from_memory_of_its_own():
    batches = [torch.randint(0, 200, (rows, 3), dtype=torch.uint8) for rows in (4, 4, 4, 1)]
    taken, copier = [], LateCopier()

    def taking():
        for number, batch in enumerate(batches):
            taken.append(number)
            yield batch.clone()

    found = sent(taking(), len(batches), torch.device("cpu"), copier)
    received = [next(found)]
    received += [*found]
    assert len({id(buffer) for buffer in copier.buffers}) == len(batches)
    copier.wait_for(copier.waiting[-1][0])
    assert all(torch.equal(one, other) for one, other in zip(received, batches, strict=True))
    assert [id(each) for each in received] == [id(each) for each in copier.awaited]


@pytest.mark.parametrize("packing", ["sequential", "fused"])
def test_a_trial_on_streamed_data_is_the_same_trial(monkeypatch, tmp_path, packing):
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path))
    measured = EvaluationSettings.from_mapping(
        {"curvature": {"samples": 30, "lanczos_steps": 2, "trace_probes": 2}, "bootstrap": 0}
    )
    reports = []
    for data in ("device", "host"):
        settings = TrialSettings(
            {"name": "digits_32"}, 1, (1,), "val_nll", measured, packing=packing, training=TrainingSettings(data=data)
        )
        dataset = settings.load_dataset()
        assert dataset.train.streamed == (data == "host")
        few = {
            name: replace(split, inputs=split.inputs[:60], targets=split.targets[:60])
            for name, split in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test))
        }
        values = configuration(architecture={"name": "mlp", "width": 8}, batch_size=16)
        report = Trial(Assignment(0, "c00000", values, (1, 2)), settings, replace(dataset, **few)).advance().to_dict()
        reports.append({**report, "wall_seconds": 0, "epochs": timeless(report["epochs"])})
    assert repr(reports[0]) == repr(reports[1])

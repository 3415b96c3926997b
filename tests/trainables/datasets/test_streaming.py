"""Batches that come from the host are the batches of data on the device; what fails in the thread fails here."""

import threading
from dataclasses import replace

import pytest
import torch

from tests.trainables.datasets.test_sharing import images
from tests.trainables.training.lanes.comparison import configuration, timeless
from trainables.datasets.base import batches, evaluation_batches
from trainables.datasets.image_stream import AHEAD, ahead, sent
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


@pytest.mark.gpu
def test_no_batch_changes_on_its_way_to_a_card():
    """Many batches in flight, each read while later ones are copied: memory is reused only once it was copied."""
    inputs = torch.randint(0, 200, (4096, 64, 64), dtype=torch.uint8)
    rows = torch.randperm(4096).split(256)
    for _ in range(20):
        found = sent(lambda chosen: inputs.index_select(0, chosen), rows, torch.device("cuda"))
        sums = torch.stack([batch.long().sum((1, 2)) for batch in found])
        assert torch.equal(sums.cpu().flatten(), inputs.long().sum((1, 2))[torch.cat(rows)])


@pytest.mark.parametrize("packing", ["sequential", "lanes"])
def test_a_trial_on_streamed_data_is_the_same_trial(packing):
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

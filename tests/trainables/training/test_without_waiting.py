"""No step of an epoch waits for the device: each runs on tensors without numbers, of which nothing can be asked.

A meta tensor raises whenever the host wants a value of it (`item`, `nonzero`, an `if`, a copy to the host), and when it
meets a tensor of the host. So what runs on it neither synchronises with a card nor mixes devices. A copy of a tensor of
the host, for which a card's stream is waited for, it allows: those are counted, and more steps must not have more.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainables.small_data import small_digits
from tests.trainables.training.lanes.comparison import configuration
from tests.trainables.training.lanes.filling import of_every_loss
from trainables.datasets.image_stream import CropAndFlip
from trainables.training import evaluation
from trainables.training.evaluation import EvaluationSettings, predictions_of
from trainables.training.lanes.cohort import Cohort
from trainables.training.loop import Replicate
from trainables.training.prediction import joined, logits_and_norms, on_host, parted


@pytest.fixture(autouse=True)
def without_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast has no meta device; it changes types alone."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


class Copies(TorchDispatchMode):
    """Counts copies from the host to the device within it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        source = args[1] if func is torch.ops.aten.copy_.default else args[0] if args else None
        if isinstance(source, torch.Tensor) and source.device.type == "cpu" and _is_on_meta(found):
            self.count += 1
        return found


def _is_on_meta(found: object) -> bool:
    return isinstance(found, torch.Tensor) and found.device.type == "meta"


def replicates(values, count, *, augmented=False) -> list[Replicate]:
    found = small_digits()
    train = replace(found.train, augmentation=CropAndFlip(padding=1) if augmented else None).first(130)
    given = replace(found, train=train).to("meta")
    return [Replicate(values, seed=seed, dataset=given, max_epochs=4, device="meta") for seed in range(count)]


def alone(values, **options) -> torch.Tensor:
    (replicate,) = replicates(values, 1, **options)
    replicate.begin_epoch()
    return replicate.train_batches()


def together(values, **options) -> torch.Tensor:
    lanes = replicates(values, 3, **options)
    cohort = Cohort(lanes[0], 4)
    for replicate in lanes:
        cohort.join(replicate)
    return cohort.train_batches([replicate.begin_epoch() for replicate in lanes])


@pytest.mark.parametrize("train", [alone, together])
@pytest.mark.parametrize(
    ("architecture", "every"), [("mlp", 1), pytest.param("resnet8", 11, marks=pytest.mark.integration)]
)
def test_no_loss_waits_in_an_epoch(train, architecture, every):
    for values in of_every_loss(architecture)[::every]:
        assert train(values).device.type == "meta", values["loss"]


@pytest.mark.parametrize("count", [1, 5])
def test_predictions_of_several_networks_wait_once(monkeypatch, count):
    fetched = []

    def fetch(*tensors):
        fetched.append(len(tensors))
        return [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in tensors]

    monkeypatch.setattr(evaluation, "on_host", fetch)
    held = replicates(configuration(), count)
    models = [replicate.model for replicate in held]
    found = predictions_of(models, held[0].dataset, EvaluationSettings(), logits_and_norms)
    assert len(found) == count and fetched == [2 + count * 2 * 3], "of each split its targets, logits and two norms"


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adagrad"])
@pytest.mark.parametrize("train", [alone, together])
def test_no_optimiser_and_no_augmentation_waits(train, optimizer):
    values = configuration(optimizer=optimizer)
    values["optimizer"] = {"name": optimizer, "lr": 0.01, "batch_size": 64, "gradient_clip": 1.0}
    assert train(values, augmented=True).device.type == "meta"


@pytest.mark.parametrize("recipe", [{"ema": 0.9}, {"sharpness": "sam"}, {"mixup": 0.2}])
def test_no_further_recipe_waits(recipe):
    assert alone(configuration(**recipe)).device.type == "meta"


def copies_of_an_epoch(train, values, batch_size) -> int:
    changed = [{**each, "optimizer": {**each["optimizer"], "batch_size": batch_size}} for each in values]
    lanes = [replicate for each in changed for replicate in replicates(each, 1)]
    cohort = Cohort(lanes[0], len(lanes))
    for replicate in lanes if train is together else []:
        cohort.join(replicate)
    rates = [replicate.begin_epoch() for replicate in lanes]
    with Copies() as copies:
        cohort.train_batches(rates) if train is together else [lane.train_batches() for lane in lanes]
    return copies.count


@pytest.mark.integration
@pytest.mark.parametrize("train", [alone, together])
def test_more_steps_copy_no_more_from_the_host(train):
    values = of_every_loss("mlp")
    copies_of_an_epoch(train, values, 130)  # what a process copies once
    assert copies_of_an_epoch(train, values, 65) == copies_of_an_epoch(train, values, 130)


MIXED = (
    torch.tensor(1.5),
    torch.randint(0, 10, (3,), generator=torch.Generator().manual_seed(0)),
    torch.tensor([True, False, True]),
    torch.tensor([[float("nan"), -0.0], [float("inf"), 1e-45]], dtype=torch.float64).t(),
    torch.randn(2, 3, generator=torch.Generator().manual_seed(1)).bfloat16(),
    torch.zeros(0, 4),
)


@pytest.mark.parametrize("order", [MIXED, MIXED[::-1]])
def test_tensors_of_any_type_and_shape_come_apart_as_they_were(order):
    for before, after in zip(order, parted(joined(order), order), strict=True):
        assert after.dtype == before.dtype and after.shape == before.shape
        assert after.contiguous().flatten().view(torch.uint8).equal(before.contiguous().flatten().view(torch.uint8))


def test_what_is_on_the_host_is_not_copied():
    assert all(after is before for before, after in zip(MIXED, on_host(*MIXED), strict=True))

"""On a real card: copies and augmentation there give what plain ones give.

Run with `make check-gpu`. The logic of each is tested without a card beside its module.
"""

import gc

import pytest
import torch

from sweeper.core.errors import InvalidSearchSpace
from sweeper.space.loading import load_spec
from tests.trainables.datasets.test_sharing import images
from tests.trainables.training.lanes.comparison import configuration, digits, timeless
from trainables.datasets.base import batches
from trainables.training.acceleration import PLAIN, TrainingSettings, prepare_arithmetic
from trainables.training.loop import Replicate
from trainables.training.prediction import predict

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
DETERMINISTIC = TrainingSettings(deterministic=True)


@pytest.fixture(scope="module")
def data():
    return digits().to(DEVICE)


@pytest.fixture(autouse=True)
def plainly():
    """Each test begins and ends in float32."""
    prepare_arithmetic(DETERMINISTIC, "cuda")
    yield
    prepare_arithmetic(PLAIN, "cuda")
    gc.collect()
    torch.cuda.empty_cache()


def _replicate(data):
    values = configuration("cross_entropy", {"name": "resnet8", "width": 0.5})
    values["optimizer"]["batch_size"] = 24
    return Replicate(values, seed=1, dataset=data, max_epochs=3, device=DEVICE, training=DETERMINISTIC)


def test_batches_copied_from_the_host_train_the_same_bits(data):
    streamed = digits().to(DEVICE, streamed=True)
    assert streamed.train.inputs.device.type == "cpu"
    rows = [timeless([_replicate(each).train_epoch()]) for each in (data, streamed)]
    assert rows[0] == rows[1]
    replicate = _replicate(data)
    assert torch.equal(predict(replicate.model, data.val, 7), predict(replicate.model, streamed.val, 7))


def test_many_copies_arrive_whole_while_the_card_is_busy():
    images_on_host = images(4096).train
    order = torch.Generator().manual_seed(0)
    expected = [*batches(images_on_host, 64, torch.Generator().manual_seed(0))]
    busy = torch.randn(4096, 4096, device=DEVICE)
    for found, own in zip(batches(images_on_host.to(DEVICE, streamed=True), 64, order), expected, strict=True):
        for _ in range(4):
            busy = torch.tanh(busy @ busy)
        # The same draws, augmentation and preprocessing on the card as on the CPU.
        torch.testing.assert_close(found[0].cpu(), own[0], rtol=1e-6, atol=1e-6)
        assert torch.equal(found[1].cpu(), own[1])


def test_several_cards_for_a_trial_are_refused():
    with pytest.raises(InvalidSearchSpace, match="gpu = 8 would reserve 8 GPUs"):
        load_spec("quickstart", ["resources.gpu=8"])

"""What is decoded follows from the request alone: in this process or in workers, from the first batch or from any."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.trainables.stream_files import write_tree
from trainables.datasets import load_dataset
from trainables.datasets.base import batches, evaluation_batches
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.image_stream import BusyError

TRAIN, BATCH = 180, 40


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    write_tree(folder / "train", ["a", "b"], TRAIN // 2)
    write_tree(folder / "val", ["a", "b"], 10)
    return folder


@pytest.fixture(autouse=True)
def data_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path_factory.getbasetemp() / "stream-data"))


@pytest.fixture(scope="module")
def load(photos):
    """Data sets by their number of workers, whose processes are kept for the module."""
    held = {}

    def loaded(workers, **options):
        key = (workers, *sorted(options.items()))
        if key not in held:
            held[key] = load_dataset("streamed_images", folder=str(photos), image_size=32, workers=workers, **options)
        return held[key]

    return loaded


def _epoch(dataset, seed=1, skip=0):
    found = [*batches(dataset.train, BATCH, torch.Generator().manual_seed(seed), skip=skip)]
    return [inputs for inputs, _ in found], [targets for _, targets in found]


def _same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


def test_workers_change_no_bit_and_no_order(load):
    alone, one, two = (_epoch(load(workers, randaugment=2)) for workers in (0, 1, 2))
    assert [len(each) for each in alone[1]] == [40, 40, 40, 24]
    assert _same(alone[0], one[0]) and _same(alone[0], two[0])
    assert _same(alone[1], one[1]) and _same(alone[1], two[1])


def test_an_epoch_is_a_function_of_the_generators_state(load):
    data = load(2, randaugment=2)
    generator = torch.Generator().manual_seed(1)
    first, second = ([inputs for inputs, _ in batches(data.train, BATCH, generator)] for _ in range(2))
    assert not _same(first, second)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    assert _same(first, _epoch(data)[0])
    assert torch.equal(torch.get_rng_state(), before), "nothing is drawn from the global generator"


@pytest.mark.parametrize("skip", [1, 3])
def test_the_rest_of_an_epoch_is_what_it_would_have_been(load, skip):
    data = load(2, randaugment=2)
    whole, rest = _epoch(data), _epoch(data, skip=skip)
    assert _same(whole[0][skip:], rest[0]) and _same(whole[1][skip:], rest[1])


def test_an_epoch_that_was_broken_off_does_not_reach_into_the_next(load):
    data = load(2, randaugment=2)
    expected = _epoch(data)[0]
    running = batches(data.train, BATCH, torch.Generator().manual_seed(5))
    next(running)
    running.close()
    assert _same(_epoch(data)[0], expected)


def test_two_networks_in_turns_are_refused(load):
    data = load(2, randaugment=2)
    running = batches(data.train, BATCH, torch.Generator().manual_seed(5))
    next(running)
    with pytest.raises(BusyError, match="packing: sequential"):
        next(batches(data.train, BATCH, torch.Generator().manual_seed(6)))
    running.close()


def test_evaluations_see_the_middle_of_each_image(load):
    """The reference: Pillow alone resizes the shorter side to 37 and cuts out 32 pixels."""
    data = load(2)
    found = torch.cat([inputs for inputs, _ in evaluation_batches(data.test, 16)])
    assert len(found) == len(data.test)
    numbers = data.test.source.rows.tolist()
    mean, std = (np.array(each, np.float32) for each in (data.test.preprocessing.mean, data.test.preprocessing.std))
    for number, seen in list(zip(numbers, found, strict=True))[:6]:
        path = data.test.source.images.path(number)
        image = Image.open(path).convert("RGB").resize((46, 37), Image.Resampling.BILINEAR)
        pixels = np.asarray(image.crop((7, 2, 39, 34)), np.float32) / 255
        expected = torch.from_numpy(((pixels - mean) / std).transpose(2, 0, 1))
        torch.testing.assert_close(seen, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_image_is_named(tmp_path, workers):
    folder = write_tree(tmp_path / "photos", ["a", "b"], 60)
    data = load_dataset("streamed_images", folder=str(folder), image_size=16, workers=workers)
    path = data.train.source.images.path(int(data.train.source.rows[3]))
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataSetUnavailableError, match="cannot be decoded") as refused:
        _epoch(data)
    assert refused.value.path == str(path)

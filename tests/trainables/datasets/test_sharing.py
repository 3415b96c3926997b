"""One copy of the data a node: the same bits, held once, made anew when damaged, refused when others."""

import multiprocessing
import os
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainables.small_data import small_digits
from trainables.datasets import load_dataset
from trainables.datasets.base import DataSet, Split, batches
from trainables.datasets.cache import UNUSED_DAYS, DataSetUnavailableError
from trainables.datasets.image_stream import CropAndFlip, ImagePreprocessing
from trainables.datasets.sharing import content_key, node_copy, shared_dataset

LARGE_MIB = 32


@pytest.fixture
def node(data_folder):
    return data_folder / "shared"


def images(samples=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    stored = torch.randint(0, 256, (samples, 3, 4, 4), generator=generator, dtype=torch.uint8)
    split = Split(stored, torch.arange(samples) % 3, ImagePreprocessing((0.5,) * 3, (0.2,) * 3))
    train = replace(split, augmentation=CropAndFlip(padding=1, black=(1.0, 2.0, 3.0)))
    posterior = torch.rand(samples, 3, generator=generator, dtype=torch.float64)
    return DataSet("own", train, split, split, 3, (3, 4, 4), "hash", ("a", "b", "c"), posterior=posterior)


def share(dataset):
    return content_key(node_copy(dataset))


def copies(node):
    return {path.stem for path in node.glob("*.pt")}


def never():
    pytest.fail("loaded again")


def same(one, other):
    for field in fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, Split):
            same(left, right)
        elif isinstance(left, torch.Tensor):
            assert torch.equal(left, right) and left.dtype == right.dtype, field.name
        elif field.name != "transform":  # copies for workers have none
            assert left == right, field.name


@pytest.mark.parametrize("make", [images, small_digits, lambda: load_dataset("known_posterior_1d", test_samples=60)])
def test_what_is_mapped_is_what_was_shared(make):
    dataset = make()
    mapped = shared_dataset(share(dataset), never)
    same(dataset, mapped)
    own, theirs = (batches(d.train, 7, torch.Generator().manual_seed(3)) for d in (dataset, mapped))
    for (inputs, targets), (others, classes) in zip(own, theirs, strict=True):
        assert torch.equal(inputs, others) and torch.equal(targets, classes)


def test_a_key_is_the_contents():
    dataset = images()
    assert content_key(dataset) == content_key(images()) != content_key(images(seed=1))
    changed = dataset.test.inputs.clone()
    changed[3, 0, 1, 1] += 1
    others = [
        replace(dataset, test=replace(dataset.test, inputs=changed)),
        replace(dataset, train=replace(dataset.train, augmentation=None)),
        replace(dataset, class_names=("a", "b", "x")),
        replace(dataset, posterior=None),
    ]
    assert len({content_key(data) for data in (dataset, *others)}) == 5


def test_the_first_process_of_a_node_loads(node):
    dataset, loaded = images(), []

    def load():
        loaded.append(1)
        return dataset

    key = content_key(dataset)
    for _ in range(3):
        same(dataset, shared_dataset(key, load))
    assert loaded == [1] and copies(node) == {key}


def test_other_data_than_the_sweeps_are_refused(node):
    with pytest.raises(DataSetUnavailableError, match="contains other data than the sweep was started with"):
        shared_dataset(content_key(images()), lambda: images(seed=1))
    assert not copies(node)


@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
def test_a_damaged_copy_is_rebuilt(node, damage):
    dataset = images()
    key = share(dataset)
    file = node / f"{key}.pt"
    content = {"cut": file.read_bytes()[:-100], "gone": None, "other": b"not a pickle"}[damage]
    file.unlink() if content is None else file.write_bytes(content)
    same(dataset, shared_dataset(key, lambda: dataset))
    same(dataset, shared_dataset(key, never))


def test_a_copy_that_others_could_have_written_is_compared_with_its_name(node):
    dataset = images()
    key = share(dataset)
    torch.save(images(seed=1), node / f"{key}.pt")
    (node / f"{key}.pt").chmod(0o666)
    same(dataset, shared_dataset(key, lambda: dataset))


class OwnPreprocessing:
    """What only a user's program knows."""

    def __eq__(self, other):
        return isinstance(other, OwnPreprocessing)

    __hash__ = None


def test_data_with_parts_of_a_users_own_are_not_shared(node):
    plain = images()
    dataset = replace(plain, val=replace(plain.val, preprocessing=OwnPreprocessing()))
    assert shared_dataset(content_key(dataset), lambda: dataset) is dataset
    assert not copies(node)


def test_writing_to_a_tensor_changes_no_other_process(node):
    key = share(images())
    first = shared_dataset(key, never)
    first.train.inputs.zero_()
    same(images(), shared_dataset(key, never))


def test_without_a_folder_each_process_keeps_its_own(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path / "file"))
    dataset = images()
    assert share(dataset) == content_key(dataset)
    assert shared_dataset(content_key(dataset), lambda: dataset) is dataset


def test_copies_long_unused_go_when_another_is_made(node):
    old, used = share(images(seed=1)), share(images(seed=2))
    long_ago = time.time() - (UNUSED_DAYS + 1) * 24 * 3600
    for key in (old, used):
        os.utime(node / f"{key}.pt", (long_ago, long_ago))
    shared_dataset(used, never)
    new = share(images(seed=3))
    assert copies(node) == {used, new}


def _hold(key, ready, measured, done):
    """Map the data, read every byte, and tell this process's share of the memory that they take, in MiB."""
    dataset = shared_dataset(key, lambda: None)
    assert int(dataset.train.inputs.sum()) == 255 * dataset.train.inputs.numel()
    ready.wait(60)
    resident, proportional, ours = 0, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith(f"{key}.pt")
        elif ours and line.startswith("Rss:"):
            resident += int(line.split()[1])
        elif ours and line.startswith("Pss:"):
            proportional += int(line.split()[1])
    measured.put((resident / 1024, proportional / 1024))
    done.wait(60)


@pytest.mark.integration
def test_two_processes_hold_the_data_once():
    """Each sees all of it; the operating system counts half of it to each."""
    inputs = torch.full((LARGE_MIB * 1024, 1024), 255, dtype=torch.uint8)
    large = Split(inputs, torch.zeros(len(inputs), dtype=torch.int64))
    small = Split(inputs[:3], torch.arange(3))
    key = share(DataSet("large", large, small, small, 3, (1024,), ""))
    context = multiprocessing.get_context("spawn")
    ready, done, measured = context.Barrier(2), context.Event(), context.Queue()
    processes = [context.Process(target=_hold, args=(key, ready, measured, done)) for _ in range(2)]
    for process in processes:
        process.start()
    try:
        found = np.array([measured.get(timeout=120) for _ in processes])
    finally:
        done.set()
        for process in processes:
            process.join(60)
    print(f"{LARGE_MIB} MiB in two processes: resident {found[:, 0]}, their shares {found[:, 1]} MiB")
    assert (found[:, 0] > 0.99 * LARGE_MIB).all()
    assert found[:, 1].sum() < 1.1 * LARGE_MIB


def test_further_splits_are_shared_and_no_other_name_changes() -> None:
    plain = load_dataset("digits")
    wider = replace(plain, further={"shifted": replace(plain.test, targets=plain.test.targets.flip(0))})
    assert content_key(wider) != content_key(plain) == content_key(replace(plain, further={}))
    found = node_copy(wider)
    assert list(found.splits) == ["train", "val", "test", "shifted"]
    assert torch.equal(found.splits["shifted"].targets, wider.splits["shifted"].targets)
    with pytest.raises(ValueError, match="choose lower-case letters"):
        replace(plain, further={"out-of-distribution": plain.test})

import numpy as np
import pytest
import torch

from trainables.datasets import load_dataset
from trainables.datasets.images import held_out
from trainables.datasets.partition import flip_labels, hash_of_splits, shuffled_split, stratified_split, thinned


@pytest.mark.parametrize("seed", range(3))
def test_stratified_parts_are_disjoint_complete_and_hold_equal_shares(seed):
    targets = np.random.RandomState(seed).randint(0, 7, 1000)
    parts = stratified_split(targets, (0.2, 0.1), seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    for label in range(7):
        size = (targets == label).sum()
        assert [(targets[part] == label).sum() for part in parts[1:]] == [round(0.2 * size), round(0.1 * size)]


def test_the_shuffled_split_is_that_of_the_released_code():
    # numpy.random.seed(1); numpy.random.shuffle(list); the first tenth is for validation
    indices = list(range(5000))
    np.random.RandomState(1).shuffle(indices)
    train, val = shuffled_split(5000, 0.1, seed=1)
    assert sorted(indices[:500]) == val.tolist() and sorted(indices[500:]) == train.tolist()


# The training set of CIFAR-10 and CIFAR-100 has 50,000 images in an order fixed by the archives; a shuffled split
# depends on their number alone, a stratified one on their labels too.
PINNED_SHUFFLED = "50b33c8c14150fa6113696ec444ffde0d1a932fe3a543d510953d2220820d893"
PINNED_BALANCED = "0e47f28e63107ff3256dfe8a9cd9e6685b8a3029e91c216b02c2d33db2b35b44"


def test_split_hashes_are_pinned():
    targets = np.arange(50_000) % 10
    train, val = held_out(targets, "shuffled")
    assert (len(train), len(val)) == (45_000, 5_000)
    assert hash_of_splits(train, val) == PINNED_SHUFFLED
    train, val = held_out(targets, "stratified")
    assert (len(train), len(val)) == (45_000, 5_000) and np.bincount(targets[val]).tolist() == [500] * 10
    assert hash_of_splits(train, val) == PINNED_BALANCED


def test_a_tenth_of_each_class_leaves_validation_whole():
    targets = np.arange(50_000) % 10
    train, val = held_out(targets, "stratified", class_fraction=0.1)
    assert np.bincount(targets[train]).tolist() == [450] * 10 and len(val) == 5000
    assert not set(train) & set(val)
    assert np.array_equal(train, thinned(held_out(targets, "stratified")[0], targets, 0.1, 42))


def test_hashes_tell_order_and_borders_apart():
    assert hash_of_splits(np.array([1, 2]), np.array([3])) != hash_of_splits(np.array([1]), np.array([2, 3]))
    assert hash_of_splits(np.array([1, 2])) != hash_of_splits(np.array([2, 1]))
    assert hash_of_splits(np.array([1, 2], np.int32)) == hash_of_splits(np.array([1, 2], np.int64))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("share", "classes"), [(0.0, 10), (0.1, 10), (0.5, 3), (0.3, 2)])
def test_exactly_the_share_is_flipped_to_another_class(share: float, classes: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, 1000)
    flipped = flip_labels(labels, share, classes, seed)
    assert (flipped != labels).sum() == round(1000 * share)
    assert flipped.min() >= 0 and flipped.max() < classes


def test_every_other_class_is_equally_likely() -> None:
    flipped = flip_labels(np.zeros(30_000, np.int64), 1.0, 4)
    shares = np.bincount(flipped, minlength=4) / 30_000
    assert shares[0] == 0 and np.allclose(shares[1:], 1 / 3, atol=0.01)  # standard error 0.0027


@pytest.mark.parametrize("name", ["digits", "digits_stand_in"])
def test_only_training_labels_are_touched(name: str) -> None:
    clean, noisy = load_dataset(name), load_dataset(name, label_noise=0.1)
    assert int((clean.train.targets != noisy.train.targets).sum()) == round(0.1 * len(clean.train))
    for split in ("val", "test"):
        assert torch.equal(getattr(clean, split).targets, getattr(noisy, split).targets)
    assert torch.equal(clean.train.inputs, noisy.train.inputs) and clean.split_hash == noisy.split_hash


def test_a_share_outside_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="label_noise = 1 is outside"):
        load_dataset("digits", label_noise=1.0)

import numpy as np
import pytest
import torch

from trainables.datasets import Split, base, load_dataset
from trainables.datasets.base import batches, evaluation_batches, hash_of_splits, stratified_split, thinned
from trainables.datasets.image_stream import CropAndFlip, ImagePreprocessing
from trainables.datasets.images import flip_labels, held_out


@pytest.mark.parametrize("seed", range(3))
def test_stratified_parts_are_disjoint_complete_and_hold_equal_shares(seed):
    targets = np.random.RandomState(seed).randint(0, 7, 1000)
    parts = stratified_split(targets, (0.2, 0.1), seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
    for label in range(7):
        size = (targets == label).sum()
        assert [(targets[part] == label).sum() for part in parts[1:]] == [round(0.2 * size), round(0.1 * size)]


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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("share", "classes"), [(0.0, 10), (0.1, 10), (0.5, 3), (0.3, 2)])
def test_exactly_the_share_is_flipped_to_another_class(share: float, classes: int, seed: int) -> None:
    labels = np.random.default_rng(seed).integers(0, classes, 1000)
    flipped = flip_labels(labels, share, classes, seed)
    assert (flipped != labels).sum() == round(1000 * share)
    assert flipped.min() >= 0 and flipped.max() < classes


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


def numbered(samples):
    return Split(torch.arange(samples, dtype=torch.float32)[:, None], torch.arange(samples))


def generator(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("whole_copy_bytes", [0, base.WHOLE_COPY_BYTES])
@pytest.mark.parametrize("seed", range(3))
def test_an_epoch_holds_every_sample_once_with_its_target(monkeypatch, whole_copy_bytes, seed):
    monkeypatch.setattr(base, "WHOLE_COPY_BYTES", whole_copy_bytes)
    drawn = list(batches(numbered(103), 10, generator(seed)))
    assert [len(targets) for _, targets in drawn] == [10] * 10 + [3]
    for inputs, targets in drawn:
        assert torch.equal(inputs[:, 0].long(), targets)
    seen = torch.cat([targets for _, targets in drawn])
    assert torch.equal(seen.sort().values, torch.arange(103)) and not torch.equal(seen, torch.arange(103))
    assert torch.equal(seen, torch.randperm(103, generator=generator(seed)))


def test_the_last_batch_may_be_short_and_none_is_empty():
    assert [len(t) for _, t in batches(numbered(25), 10, generator(0))] == [10, 10, 5]
    with pytest.raises(ValueError, match="at least 1"):
        list(batches(numbered(25), 0, generator(0)))
    assert [len(t) for _, t in batches(numbered(25), 64, generator(0))] == [25]


def test_evaluation_keeps_order_and_never_augments():
    images = torch.randint(0, 256, (7, 3, 8, 8), dtype=torch.uint8)
    split = Split(images, torch.arange(7), ImagePreprocessing((0.5,) * 3, (0.25,) * 3), CropAndFlip())
    inputs = torch.cat([inputs for inputs, _ in evaluation_batches(split, 3)])
    torch.testing.assert_close(inputs, (images.float() / 255 - 0.5) / 0.25)


def test_a_network_may_change_what_it_is_given():
    split = Split(torch.rand(7, 4), torch.arange(7), None, None)
    before = split.inputs.clone()
    for inputs in (*(inputs for inputs, _ in evaluation_batches(split, 3)), split.head(2)):
        inputs.zero_()
    assert torch.equal(split.inputs, before)


def crop_one(image, row, column, mirrored, padding, black):
    """The reference: pad, cut, mirror, one image in numpy."""
    channels, height, width = image.shape
    padded = np.empty((channels, height + 2 * padding, width + 2 * padding), image.dtype)
    padded[:] = np.asarray(black).reshape(-1, 1, 1)
    padded[:, padding : padding + height, padding : padding + width] = image
    cut = padded[:, row : row + height, column : column + width]
    return cut[:, :, ::-1] if mirrored else cut


@pytest.mark.parametrize("black", [0, (-1.5, 0.5, 2.0)])
@pytest.mark.parametrize("seed", range(4))
def test_crop_and_flip_equals_one_image_at_a_time(seed, black):
    augmentation = CropAndFlip(padding=4, black=black)
    torch.manual_seed(seed)
    images = torch.randn(9, 3, 12, 10)
    draws = augmentation.draw(9, generator(seed))
    changed = augmentation(images, draws)
    for image, draw, result in zip(images, draws.tolist(), changed, strict=True):
        expected = crop_one(image.numpy(), *draw, 4, np.broadcast_to(np.float32(black), (3,)))
        np.testing.assert_allclose(result.numpy(), expected, atol=1e-6)


def test_training_batches_are_augmented_then_prepared():
    images = torch.randint(1, 256, (32, 1, 8, 8), dtype=torch.uint8)
    split = Split(images, torch.arange(32), ImagePreprocessing((0.0,), (1.0,)), CropAndFlip())
    ((inputs, targets),) = batches(split, 32, generator(3))
    source = generator(3)
    order = torch.randperm(32, generator=source)
    draws = split.augmentation.draw(32, source)
    torch.testing.assert_close(inputs, split.augmentation(images[order], draws).float() / 255)
    assert torch.equal(targets, order)

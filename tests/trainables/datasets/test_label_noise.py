"""Flipped training labels: exactly the share asked for, never the right class again, nothing else touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainables.datasets import load_dataset
from trainables.datasets.label_noise import flip_labels


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

"""Digits in other shapes: the same images in every form, learnable in each."""

from typing import Any

import pytest
import torch

from trainables.datasets import load_dataset
from trainables.datasets.digits import FIRST_WORD, SHADES, VOCABULARY, digit_arrays
from trainables.models import build_for
from trainables.training.loop import Replicate


def test_every_word_names_its_place_and_shade() -> None:
    data = load_dataset("digits_stand_in", form="tokens")
    images, _, parts = digit_arrays()
    for row, image in zip(data.train.inputs[:50].numpy(), images[parts[0][:50]].reshape(50, 64), strict=True):
        expected = [FIRST_WORD + place * SHADES + -(-int(p) * SHADES // 16) - 1 for place, p in enumerate(image) if p]
        assert [token for token in row if token] == expected
        assert not row[: 64 - len(expected)].any(), "padding stands in front"
    assert data.vocabulary == VOCABULARY > int(data.train.inputs.max())


def test_trees_are_in_post_order_and_hold_every_leaf() -> None:
    data = load_dataset("digits_stand_in", form="trees", classes=2)
    for tree in data.train.inputs[:20].numpy():
        leaves = tree[:, 3] == 0
        assert leaves.sum() == 16 and tree[-1, 3] == 4
        for place, (token, left, right, height) in enumerate(tree):
            assert (token > 0) == (height == 0)
            assert height == 0 or (left < place and right < place and height == 1 + max(tree[left, 3], tree[right, 3]))


@pytest.mark.parametrize(
    ("options", "network"),
    [
        ({"channels": 1, "size": 8}, {"name": "mlp"}),
        ({"form": "tokens"}, {"name": "text_average", "vocabulary": VOCABULARY, "dimension": 32}),
        (
            {"form": "trees", "classes": 2},
            {"name": "tree_lstm", "vocabulary": VOCABULARY, "width": 16, "dimension": 16},
        ),
    ],
)
def test_a_network_learns_it(options: dict[str, Any], network: dict[str, Any]) -> None:
    data = load_dataset("digits_stand_in", augment=False, **options)
    assert build_for(data, network)(data.train.select(torch.arange(3))[0]).shape == (3, data.classes)
    recipe = {"name": "adam", "lr": 0.01, "batch_size": 32}
    configuration = {"loss": {"name": "cross_entropy"}, "architecture": network, "optimizer": recipe}
    replicate = Replicate(configuration, seed=0, dataset=data, max_epochs=12, device="cpu")
    rows = [replicate.train_epoch() for _ in range(12)]
    assert rows[-1]["train_loss"] < 0.7 * rows[0]["train_loss"]
    assert rows[-1]["val_accuracy"] > 0.3 + 0.3 * (data.classes == 2)

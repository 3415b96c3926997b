"""How large a data set is, known without its files: what `sweeper plan` reckons with before anything is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DataSetSize:
    """Shape of one network input, classes, samples of the three splits, and token ids of a text."""

    input_shape: tuple[int, ...]
    classes: int
    train: int
    val: int
    test: int
    text: bool = False


SIZES = {
    "digits": DataSetSize((1, 8, 8), 10, 1079, 359, 359),
    "digits_32": DataSetSize((3, 32, 32), 10, 1079, 359, 359),
    "cifar10": DataSetSize((3, 32, 32), 10, 45_000, 5_000, 10_000),
    "cifar100": DataSetSize((3, 32, 32), 100, 45_000, 5_000, 10_000),
    "svhn": DataSetSize((3, 32, 32), 10, 65_931, 7_326, 26_032),
    "tiny_imagenet": DataSetSize((3, 64, 64), 200, 90_000, 10_000, 10_000),
    "fashion_mnist": DataSetSize((1, 28, 28), 10, 54_000, 6_000, 10_000),
    "newsgroups20": DataSetSize((1000,), 20, 15_098, 900, 3_999, text=True),
    "sst2": DataSetSize((103, 4), 2, 6_920, 872, 1_821, text=True),
}
"""By name, with default options; sst2's longest sentence has 52 words."""


def dataset_size(dataset: Mapping[str, Any]) -> DataSetSize | None:
    """Return a data set's size from its name and options; `None` where only its files know it."""
    name = dataset["name"]
    if name in ("known_posterior_1d", "mukhoti_linear"):
        inputs, classes = (1, 3) if name == "known_posterior_1d" else (2, 2)
        train, val, test = (int(dataset[f"{split}_samples"]) for split in ("train", "validation", "test"))
        return DataSetSize((inputs,), classes, train, val, test)
    if name == "digits_stand_in":
        return _stand_in(dataset)
    size = SIZES.get(name)
    if size is None:
        return None
    side = dataset.get("image_size")
    shape = (size.input_shape[0], side, side) if side else size.input_shape
    if name == "newsgroups20":
        shape = (dataset["length"],)
    if name == "sst2" and dataset["form"] == "words":
        shape = ((shape[0] + 1) // 2,)
    train = round(size.train * dataset.get("class_fraction", 1.0))
    return DataSetSize(shape, size.classes, train, size.val, size.test, size.text)


def _stand_in(dataset: Mapping[str, Any]) -> DataSetSize:
    form, side = dataset["form"], dataset["size"]
    shape = {"images": (dataset["channels"], side, side), "tokens": (64,), "trees": (31, 4)}[form]
    limits = (("train", 1079), ("validation", 359), ("test", 359))
    train, val, test = (min(int(dataset[f"{split}_samples"]), most) for split, most in limits)
    return DataSetSize(shape, dataset["classes"], train, val, test, text=form != "images")

"""Another data set as an evaluation split, with the same classes or with other classes."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from trainables.datasets import load_dataset
from trainables.datasets.base import DataSet, Split
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.splits.base import EVALUATION_SPLITS, beside, subset
from trainables.registry import LABEL, SPLITS, BrokenRule, Hyperparameter, Options, column_label
from trainables.registry.names import other_name


@dataclass(frozen=True)
class Other:
    """One split of another data set; see `EvaluationSplit`.

    Images are converted to the size and channels of the data set, and then preprocessed like its test images.

    Attributes:
        dataset: name and options of the other data set.
        taken: name of the other data set's split.
        label: part of the split's name after `other_`.
        same_classes: whether it has the same classes as the data set, in the same order, so that all metrics apply.
        samples: number of samples; `None` for all.
        logits: whether logits are kept.
    """

    dataset: Options
    taken: str
    label: str
    same_classes: bool = False
    samples: int | None = None
    logits: bool = False
    detected: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the split, e.g. `other_svhn`."""
        return (other_name(self.label),)

    def fault(self, dataset: DataSet) -> str | None:
        """Return the reason why the other data cannot be loaded or converted to the networks' inputs, or `None`."""
        try:
            _, _, classes = self._loaded(dataset)
        except (DataSetUnavailableError, KeyError, ValueError) as error:
            return f"{self.dataset['name']}: {error}"
        if self.same_classes and classes != dataset.classes:
            return f"same_classes: {self.dataset['name']} has {classes} classes, {dataset.name} {dataset.classes}"
        return None

    def split(self, dataset: DataSet, name: str) -> Split:
        """Return the other data.

        Raises:
            DataSetUnavailableError: files are missing or broken.
        """
        inputs, targets, _ = self._loaded(dataset)
        return beside(dataset, inputs, targets)

    def _loaded(self, dataset: DataSet) -> tuple[Tensor, Tensor, int]:
        shape = (str(dataset.test.inputs.dtype), tuple(dataset.test.inputs.shape[1:]))
        images = dataset.test.preprocessing is not None
        return _loaded(json.dumps(dict(self.dataset), sort_keys=True), self.taken, self.samples, *shape, images)


@functools.lru_cache(maxsize=4)
def _loaded(
    named: str, taken: str, samples: int | None, dtype: str, shape: tuple[int, ...], images: bool
) -> tuple[Tensor, Tensor, int]:
    """Return inputs [N, …] in the stored form of the data set, targets [N], and the number of classes.

    Raises:
        DataSetUnavailableError: files are missing or broken.
        ValueError: there is no such split, or its inputs have another form.
    """
    options = json.loads(named)
    other = load_dataset(options.pop("name"), **options)
    if taken not in other.splits:
        raise ValueError(f"it has no split {taken!r}; it has {', '.join(other.splits)}")
    split = other.splits[taken]
    chosen = subset(len(split), samples)
    inputs, targets = split.stored(chosen), split.targets[chosen]
    if images and split.preprocessing is not None and inputs.dtype == torch.uint8 and inputs.ndim == 4:
        inputs = _as_images(inputs, shape)
    if (str(inputs.dtype), tuple(inputs.shape[1:])) != (dtype, shape) or (split.preprocessing is not None) != images:
        actual = f"{str(inputs.dtype).removeprefix('torch.')} {tuple(inputs.shape[1:])}"
        raise ValueError(
            f"its inputs are {actual}, not {dtype.removeprefix('torch.')} {shape}, and no images to resize"
        )
    return inputs.clone(), targets.clone(), other.classes


def _as_images(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return uint8 images [N, C, H, W] with the channels and sides of `shape`; grey is three equal channels."""
    channels, height, width = shape
    if images.shape[1] != channels:
        pixels = images.to(torch.float32)
        grey = pixels if images.shape[1] == 1 else _luma(pixels)
        images = grey.expand(-1, channels, -1, -1).round().to(torch.uint8)
    if tuple(images.shape[2:]) == (height, width):
        return images.contiguous()
    # antialiased, because the other images can be much larger
    resized = functional.interpolate(
        images.to(torch.float32), (height, width), mode="bilinear", antialias=True, align_corners=False
    )
    return resized.round().clamp(0, 255).to(torch.uint8)


def _luma(pixels: Tensor) -> Tensor:
    if pixels.shape[1] != 3:
        return pixels.mean(dim=1, keepdim=True)
    return (pixels * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)


def _check(values: Mapping[str, object]) -> BrokenRule | None:
    label = values.get(LABEL)
    if label is not None and not (str(label).isidentifier() and str(label) == str(label).lower()):
        return "label", f"label = {label!r} must be a word of lower-case letters, digits and _"
    return None


@EVALUATION_SPLITS.add("other", check=_check)
def _other(
    dataset: Annotated[str | Mapping[str, Any], Hyperparameter(kind="text", names="data set")],
    split: str = SPLITS[-1],
    label: str | None = None,
    same_classes: bool = False,
    samples: Annotated[int | None, "[1, inf)"] = None,
    logits: bool = False,
) -> Other:
    """Another data set, distinguished from the test data by the networks' outputs.

    Return a split of another data set as an evaluation split.

    Source: Hendrycks & Gimpel 2017, arXiv:1610.02136.

    Args:
        label: [the data set's name].
        same_classes: if true, all metrics are measured, not only detection.
    """
    named = {"name": dataset} if isinstance(dataset, str) else dict(dataset)
    return Other(named, split, label or column_label(named["name"]), same_classes, samples, logits)

"""Corrupted test images, computed or read from the files of CIFAR-10-C or CIFAR-100-C."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.datasets.base import DataSet, Split
from trainables.datasets.cache import DataSetUnavailableError, kept, refused
from trainables.datasets.corruptions import Corruption, Images, blur, digital, weather
from trainables.datasets.corruptions.weather import FROST_KIND, photographs_folder
from trainables.datasets.splits.base import EVALUATION_SPLITS, beside, subset
from trainables.registry import BrokenRule, Options
from trainables.registry.names import corrupted_name, corruption_of

SEVERITIES = (1, 2, 3, 4, 5)

#: Images with sides of at most this use the constants of CIFAR-10-C; larger images use those of ImageNet-C.
LARGEST_SMALL_SIDE = 64

#: Smaller images would be all blur and border. Fashion-MNIST has the smallest images that can be corrupted.
LEAST_SIDE = 28

#: Pixel values corrupted at a time: 32 MiB in float64.
CHUNK_VALUES = 2**22

#: All kinds by name, in the order of the paper.
CORRUPTIONS: dict[str, Corruption] = {
    corruption.__name__: corruption
    for corruption in (
        digital.gaussian_noise, digital.shot_noise, digital.impulse_noise,
        blur.defocus_blur, blur.glass_blur, blur.motion_blur, blur.zoom_blur,
        weather.snow, weather.frost, weather.fog, weather.brightness,
        digital.contrast, digital.elastic_transform, digital.pixelate, digital.jpeg_compression,
    )
}  # fmt: skip

KINDS = tuple(CORRUPTIONS)

LABELS = "labels.npy"
REMEDY = "unpack CIFAR-10-C.tar of https://zenodo.org/records/2535967 and name its folder, or leave out folder"


def check_corrupted(values: Options) -> BrokenRule | None:
    """Return the error for invalid kinds or severities, or `None`."""
    kinds, severities = values.get("kinds", KINDS), values.get("severities", SEVERITIES)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds or len(set(kinds)) < len(kinds):
        return "kinds", f"kinds = {list(kinds)} must be different ones of {', '.join(KINDS)}"
    if not severities or not set(severities) <= set(SEVERITIES) or len(set(severities)) < len(severities):
        return "severities", f"severities = {list(severities)} must be different ones of 1, 2, 3, 4, 5"
    return None


@EVALUATION_SPLITS.add("corrupted", check=check_corrupted, apart=["same_classes", "detected"])
@dataclass(frozen=True)
class Corrupted:
    """The test images corrupted: 15 kinds at five severities.

    Source: Hendrycks & Dietterich 2019, arXiv:1903.12261.

    `folder` has the files of CIFAR-10-C: `<kind>.npy` with the test images at severity 1, then at 2 …, and
    `labels.npy`. `samples` is the number of test images per kind and severity; `None` for all.

    Attributes:
        kinds: [Hendrycks & Dietterich 2019].
        severities: [Hendrycks & Dietterich 2019].
        folder: [computed unless CIFAR-10-C's own files are named].
    """

    kinds: Sequence[str] = KINDS
    severities: Sequence[float] = SEVERITIES
    folder: str | None = None
    samples: Annotated[int | None, "[1, inf)"] = None
    logits: bool = False
    same_classes: bool = True
    detected: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all kinds and severities, e.g. `corrupted_fog_3`."""
        return tuple(corrupted_name(kind, int(severity)) for kind in self.kinds for severity in self.severities)

    def fault(self, dataset: DataSet) -> str | None:
        """Return the reason why images cannot be corrupted or read, or `None`."""
        stored = dataset.test.inputs
        wrong = image_fault(tuple(stored.shape), stored.dtype)
        if wrong is not None:
            return f"{dataset.name} cannot be corrupted: {wrong}"
        try:
            if self.folder is None and FROST_KIND in self.kinds:
                photographs_folder()
            if self.folder is not None:
                for kind in self.kinds:
                    self._file(dataset, kind)
        except DataSetUnavailableError as error:
            return f"{error.path}: {error.rule}; {error.remedy}"
        return None

    def split(self, dataset: DataSet, name: str) -> Split:
        """Return one kind at one severity.

        Raises:
            DataSetUnavailableError: files are missing or broken.
        """
        kind, severity = corruption_of(name)
        if self.folder is not None:
            images, targets = self._file(dataset, kind)
            count = len(targets) // len(SEVERITIES)
            rows = subset(count, self.samples).numpy() + (severity - 1) * count
            return beside(dataset, _planes(images[rows]), targets[rows].astype(np.int64))
        chosen = subset(len(dataset.test), self.samples)
        clean = dataset.test.stored(chosen).cpu().numpy()
        classes = dataset.test.targets[chosen.to(dataset.test.targets.device)]
        # by contents, so that equal images of different data sets or options share a copy
        digest = hashlib.sha256(f"{_VERSION} {kind} {severity} {clean.shape}\0".encode())
        digest.update(clean.data if clean.flags.c_contiguous else np.ascontiguousarray(clean).data)

        def compute() -> Tensor:
            return torch.from_numpy(_planes(corrupted(clean.transpose(0, 2, 3, 1), kind, severity)))

        # nothing identifies the contents of a copy that others could have written, so it is made again
        inputs = kept(f"corrupted-{digest.hexdigest()[:32]}", compute, sound=lambda _: False)
        return beside(dataset, inputs, classes)

    def _file(self, dataset: DataSet, kind: str) -> tuple[NDArray[np.uint8], NDArray[np.generic]]:
        """Return the images [5 N, H, W, C], mapped, and classes [5 N] of one kind."""
        folder = Path(str(self.folder)).expanduser()
        images, targets = (_array(folder / name) for name in (f"{kind}.npy", LABELS))
        channels, height, width = dataset.test.inputs.shape[1:]
        if images.dtype != np.uint8 or images.shape[1:] != (height, width, channels) or len(images) != len(targets):
            rule = f"holds {images.dtype} {images.shape} beside {len(targets)} labels, not uint8 images [N, {height}, "
            raise DataSetUnavailableError(folder / f"{kind}.npy", f"{rule}{width}, {channels}]", REMEDY)
        if targets.ndim != 1 or len(targets) % len(SEVERITIES) or not len(targets):
            rule = f"has shape {targets.shape}, not as many labels for each of the five severities"
            raise DataSetUnavailableError(folder / LABELS, rule, REMEDY)
        if not 0 <= int(targets.min()) <= int(targets.max()) < dataset.classes:
            rule = f"has labels up to {int(targets.max())}, and {dataset.name} has {dataset.classes} classes"
            raise DataSetUnavailableError(folder / LABELS, rule, "name the folder that belongs to the data set")
        return images, targets


def corrupted(images: Images, kind: str, severity: int, draws: np.random.RandomState | None = None) -> Images:
    """Return images corrupted by `kind` at `severity`, uint8 [N, H, W, C].

    Args:
        images: uint8 [N, H, W, C], with H = W of at least `LEAST_SIDE` and C of 1 or 3.
        kind: name in `KINDS`.
        severity: 1 to 5.
        draws: random generator. By default, kind and severity are its seed, so that all networks of all sweeps see the
            same images.

    Raises:
        DataSetUnavailableError: the photographs of `frost` are missing.

    Example:
        >>> images = np.full((1, 32, 32, 3), 100, np.uint8)
        >>> corrupted(images, "brightness", severity=1)[0, 0, 0].tolist()
        [112, 112, 112]
    """
    # `crc32` instead of `hash`, which Python salts in every process
    draws = draws or np.random.RandomState(zlib.crc32(f"{kind} {severity}".encode()))
    small = images.shape[1] <= LARGEST_SMALL_SIDE
    step = max(1, CHUNK_VALUES // int(np.prod(images.shape[1:])))
    results = np.empty_like(images)
    for start in range(0, len(images), step):
        part = images[start : start + step]
        # Truncated, not rounded, as in the reference.
        results[start : start + step] = CORRUPTIONS[kind](part, severity, small, draws).astype(np.uint8)
    return results


def image_fault(shape: tuple[int, ...], dtype: object) -> str | None:
    """Return the reason why images [N, C, H, W] of `shape` and `dtype` cannot be corrupted, or `None`."""
    if np.dtype(str(dtype).removeprefix("torch.")) != np.uint8 or len(shape) != 4:
        return "inputs are not stored as images of uint8 pixels"
    _, channels, height, width = shape
    if channels not in (1, 3):
        return f"images have {channels} channels, not 1 or 3"
    if height != width or height < LEAST_SIDE:
        return f"images have {height}×{width} pixels; squares of at least {LEAST_SIDE}×{LEAST_SIDE} can be corrupted"
    return None


#: Version of the computation: increase it when the images change, and new copies are made.
_VERSION = 1


def _planes(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images [N, H, W, C] as [N, C, H, W]."""
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _array(path: Path) -> NDArray[Any]:
    """Return the array in a file, mapped.

    Raises:
        DataSetUnavailableError: the file is missing or broken.
    """
    if not path.exists():
        raise DataSetUnavailableError(path, "the file is missing", REMEDY)
    with refused(path, "cannot be read as .npy", REMEDY, OSError, ValueError, EOFError):
        return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))

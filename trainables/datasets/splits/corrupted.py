"""Corrupted test images, computed or read from the files of CIFAR-10-C or CIFAR-100-C."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from trainables.datasets.base import DataSet, Split
from trainables.datasets.cache import DataSetUnavailableError, refused
from trainables.datasets.corruptions import KINDS, SEVERITIES, corrupted, image_fault
from trainables.datasets.corruptions.weather import FROST_KIND, photographs_folder
from trainables.datasets.sharing import shared_arrays
from trainables.datasets.splits.base import EVALUATION_SPLITS, beside, subset
from trainables.registry.names import corrupted_name, corruption_of

LABELS = "labels.npy"
REMEDY = "unpack CIFAR-10-C.tar of https://zenodo.org/records/2535967 and name its folder, or leave out folder"


def check_corrupted(values: Any) -> str | None:
    """Return the error for invalid kinds or severities, or `None`."""
    kinds, severities = values.get("kinds", KINDS), values.get("severities", SEVERITIES)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds or len(set(kinds)) < len(kinds):
        return f"kinds = {list(kinds)} must be different ones of {', '.join(KINDS)}"
    if not severities or not set(severities) <= set(SEVERITIES) or len(set(severities)) < len(severities):
        return f"severities = {list(severities)} must be different ones of 1, 2, 3, 4, 5"
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

        def compute() -> dict[str, NDArray[np.generic]]:
            return {"inputs": _planes(corrupted(clean.transpose(0, 2, 3, 1), kind, severity))}

        return beside(dataset, shared_arrays(f"corrupted-{digest.hexdigest()[:32]}", compute)["inputs"], classes)

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

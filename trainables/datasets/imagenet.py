"""ImageNet (ILSVRC 2012) from class folders or Kaggle's archive, decoded as it is read.

The 50,000 official validation images are divided into two halves of 25 images per class: one for validation, on which
post-hoc methods are fitted, and one for testing (Guo et al. 2017, arXiv:1706.04599, section 5).
"""

from __future__ import annotations

import csv
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from trainables.datasets.base import DATASETS, DataSet, stratified_split
from trainables.datasets.cache import DataSetUnavailableError, Folder, data_folder, refused
from trainables.datasets.image_files import StoredImages, class_folders, listed_files, listed_folders
from trainables.datasets.images import images_on_paper
from trainables.datasets.own_images import DECODING, Decoding, streamed_dataset

SPLIT_SEED = 42
KAGGLE = Path("ILSVRC") / "Data" / "CLS-LOC"
CLASS_INDEX, MAPPING, SOLUTION, META = (
    "imagenet_class_index.json", "LOC_synset_mapping.txt", "LOC_val_solution.csv", "meta.bin",
)  # fmt: skip
REMEDY = (
    "give folder: one with train/<wnid>/ and val/<wnid>/, or Kaggle's with ILSVRC/Data/CLS-LOC and LOC_val_solution.csv"
)


@DATASETS.add("imagenet", more=DECODING, size=images_on_paper((3, 224, 224), 1000, 1_281_167, 25_000, 25_000))
def load_imagenet(folder: Folder = None, image_size: Annotated[int, "[1, inf)"] = 224, **options: Any) -> DataSet:
    """ImageNet, 1,000 classes, decoded as it is read: folders or Kaggle's archive.

    Load ImageNet: 1,281,167 training images of 1,000 classes, 25,000 for validation, 25,000 for testing.

    Classes are numbered in the usual order of their WordNet ids; names come from `imagenet_class_index.json`,
    `LOC_synset_mapping.txt` or torchvision's `meta.bin`, if present.

    Source: Guo et al. 2017, section 5: 1.3 million / 25k / 25k.

    Args:
        folder: folder of the images, by default `imagenet` in `data_folder()`.
        image_size: side of the network's input [He et al. 2016, section 3.4].
        options: other options of `Decoding`.

    Raises:
        DataSetUnavailableError: files are missing or broken.
    """
    root = data_folder() / "imagenet" if folder is None else Path(folder).expanduser()
    train, official, ids = _from_folders(root)
    if set(np.unique(train.targets)) != set(range(len(ids))) or int(official.targets.max()) >= len(ids):
        raise DataSetUnavailableError(
            root, f"lacks images of some of the {len(ids)} classes of its class index", REMEDY
        )
    test, val = stratified_split(official.targets, (0.5,), SPLIT_SEED)
    parts = {"train": (train, np.arange(len(train), dtype=np.int64)), "val": (official, val), "test": (official, test)}
    return streamed_dataset("imagenet", parts, _names(root, ids), Decoding(image_size, **options))


def _from_folders(root: Path) -> tuple[StoredImages, StoredImages, list[str]]:
    base = root / KAGGLE if (root / KAGGLE).is_dir() else root
    if not (base / "train").is_dir() or not (base / "val").is_dir():
        raise DataSetUnavailableError(root, "does not contain train and val", REMEDY)
    ids = [path.name for path in class_folders(base / "train")]
    train = listed_folders("imagenet-train", base / "train", ids)
    # Kaggle's archive has all validation images in one folder; others sort them by class
    if any(path.is_dir() for path in (base / "val").iterdir()):
        return train, listed_folders("imagenet-val", base / "val", ids), ids
    return train, listed_files("imagenet-val", base / "val", _solution(root, ids)), ids


def _solution(root: Path, ids: Sequence[str]) -> dict[str, int]:
    """Return image → class from Kaggle's table of validation images: `ImageId,PredictionString`."""
    path = root / SOLUTION
    number = {wnid: at for at, wnid in enumerate(ids)}
    rule, broken = "cannot be read as the validation images' classes", (OSError, KeyError, IndexError, AttributeError)
    with refused(path, rule, REMEDY, *broken, typed=True), path.open(newline="") as file:
        return {row["ImageId"]: number[row["PredictionString"].split()[0]] for row in csv.DictReader(file)}


def _names(root: Path, ids: Sequence[str]) -> list[str]:
    """Return the names of the classes, or their ids if no file has names; their number is checked."""
    mapping = _mapping(root)
    names = _class_names(root / CLASS_INDEX) or [mapping.get(wnid, wnid) for wnid in ids]
    if len(names) != len(ids):
        rule = f"names {len(names)} classes, and the images have {len(ids)}"
        raise DataSetUnavailableError(root / CLASS_INDEX, rule, "give the class index of these images")
    return names


def _mapping(root: Path) -> dict[str, str]:
    """Return WordNet id → name, by id, from `LOC_synset_mapping.txt` or torchvision's `meta.bin`; `{}` without them."""
    if (root / MAPPING).is_file():
        lines = (line.partition(" ") for line in (root / MAPPING).read_text().splitlines() if line.strip())
        return dict(sorted((wnid, name.split(",")[0].strip()) for wnid, _, name in lines))
    if not (root / META).is_file():
        return {}
    rule, remedy = "is not torchvision's table of classes", "remove it, or write it again with torchvision"
    broken = (OSError, RuntimeError, ValueError, TypeError, AttributeError, EOFError, pickle.UnpicklingError)
    with refused(root / META, rule, remedy, *broken, typed=True):
        # `weights_only`: the file is a pickle, and must not run code
        classes, _ = torch.load(root / META, weights_only=True)
        return dict(sorted((wnid, name if isinstance(name, str) else name[0]) for wnid, name in classes.items()))


def _class_names(path: Path) -> list[str] | None:
    """Return the class names in a class index, `{"0": "name", …}` or Keras's `{"0": ["n01440764", "tench"], …}`.

    Returns:
        The names, or `None` if there is no such file.

    Raises:
        DataSetUnavailableError: the file is not a class index.
    """
    if not path.is_file():
        return None
    broken = (ValueError, KeyError, TypeError, IndexError)
    with refused(path, "is not a class index", 'write {"0": "name of class 0", …}', *broken, typed=True):
        index = json.loads(path.read_text())
        values = [index[str(number)] for number in range(len(index))]
        return [value if isinstance(value, str) else str(value[-1]) for value in values]

"""ImageNet is read in each layout that its users have, with its classes' names, its halves drawn by Guo et al. 2017."""

import json

import pytest
import torch

from sweeper.planning.costs import dataset_size
from tests.trainables.stream_files import jpeg, write_tree
from trainables.datasets import load_dataset
from trainables.datasets.cache import DataSetUnavailableError

IDS = ["n01440764", "n01443537", "n01484850"]
NAMES = ("tench", "goldfish", "great white shark")


def _load(folder=None):
    return load_dataset("imagenet", image_size=16, workers=0, **({} if folder is None else {"folder": str(folder)}))


def _class_index(root):
    index = {str(at): pair for at, pair in enumerate(zip(IDS, NAMES, strict=True))}
    (root / "imagenet_class_index.json").write_text(json.dumps(index))


def _mapping(root):
    lines = [f"{wnid} {name}, another name\n" for wnid, name in zip(IDS, NAMES, strict=True)]
    (root / "LOC_synset_mapping.txt").write_text("".join(lines))


def _meta(root):
    """As torchvision.datasets.ImageNet writes it: classes by id, and the validation images' ids."""
    torch.save(({wnid: (name, "another") for wnid, name in zip(IDS, NAMES, strict=True)}, IDS), root / "meta.bin")


@pytest.mark.parametrize("write", [_class_index, _mapping, _meta, None])
def test_class_folders_with_every_file_of_names(tmp_path, write):
    root = tmp_path / "data" / "imagenet"
    write_tree(root / "train", IDS, 6)
    write_tree(root / "val", IDS, 4)
    if write is not None:
        write(root)
    found = _load()
    assert found.class_names == (NAMES if write is not None else tuple(IDS))
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 18, "val": 6, "test": 6}
    assert [torch.bincount(split.targets).tolist() for split in (found.val, found.test)] == [[2, 2, 2]] * 2
    rows = [set(split.source.rows.tolist()) for split in (found.val, found.test)]
    assert not rows[0] & rows[1] and rows[0] | rows[1] == set(range(12))


def test_kaggles_archive_with_its_table_of_validation_images(tmp_path):
    base = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    write_tree(base / "train", IDS, 5)
    (base / "val").mkdir()
    labels = [2, 0, 1, 1, 2, 0]
    lines = ["ImageId,PredictionString\n"]
    for number, label in enumerate(labels):
        (base / "val" / f"ILSVRC2012_val_{number:08d}.JPEG").write_bytes(jpeg(label, 50 + number))
        lines.append(f"ILSVRC2012_val_{number:08d},{IDS[label]} 1 2 30 40 {IDS[label]} 5 6 7 8 \n")
    (tmp_path / "LOC_val_solution.csv").write_text("".join(lines))
    _mapping(tmp_path)
    found = _load(tmp_path)
    assert found.class_names == NAMES
    for split in (found.val, found.test):
        assert split.targets.tolist() == [labels[row] for row in split.source.rows.tolist()]
    (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n")
    with pytest.raises(DataSetUnavailableError, match="whose class is not known"):
        _load(tmp_path)
    (tmp_path / "LOC_val_solution.csv").unlink()
    with pytest.raises(DataSetUnavailableError, match="cannot be read as the validation images' classes"):
        _load(tmp_path)


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(DataSetUnavailableError, match="does not contain train and val"):
        _load(tmp_path)
    write_tree(tmp_path / "f" / "train", IDS, 2)
    write_tree(tmp_path / "f" / "val", IDS, 2)
    (tmp_path / "f" / "imagenet_class_index.json").write_text('{"0": ["n1", "one"]}')
    with pytest.raises(DataSetUnavailableError, match="names 1 classes, and the images have 3"):
        _load(tmp_path / "f")
    (tmp_path / "f" / "imagenet_class_index.json").write_text("[1, 2]")
    with pytest.raises(DataSetUnavailableError, match="is not a class index"):
        _load(tmp_path / "f")


def test_its_size_is_known_without_it():
    size = dataset_size({"name": "imagenet", "image_size": 160})
    assert size.input_shape == (3, 160, 160) and size.classes == 1000
    assert (size.train, size.val, size.test) == (1_281_167, 25_000, 25_000)

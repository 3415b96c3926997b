"""Tiny-ImageNet's folder tree, and folders of the user's own images."""

import shutil

import pytest
import torch
from PIL import Image

from trainables.datasets import DataSetUnavailableError, load_dataset, tiny_imagenet as module
from trainables.datasets.base import DATASETS

CLASSES = ("n02", "n01", "n03")


def write_image(path, shade, side=64, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    size = side if isinstance(side, tuple) else (side, side)
    Image.new(mode, size, shade if mode == "L" else (shade, shade // 2, 10)).save(path)


def write_tiny(folder, per_class=20):
    tree = folder / module.MEMBER
    tree.mkdir(parents=True)
    (tree / "wnids.txt").write_text("\n".join(CLASSES) + "\n")
    lines = []
    for number, name in enumerate(CLASSES):
        for image in range(per_class):
            path = tree / "train" / name / "images" / f"{name}_{image}.JPEG"
            write_image(path, 80 * number + image, mode="L" if image == 3 else "RGB")
        (tree / "train" / name / f"{name}_boxes.txt").write_text("")
        write_image(tree / "val" / "images" / f"val_{number}.JPEG", 80 * number)
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t62\t62")
    (tree / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return tree


def test_tiny_imagenet_is_read(tmp_path):
    write_tiny(tmp_path / "data")
    data = load_dataset("tiny_imagenet", folder=str(tmp_path / "data"))
    assert data.class_names == ("n01", "n02", "n03") and data.input_shape == (3, 64, 64)
    assert (len(data.train), len(data.val), len(data.test)) == (54, 6, 3)
    assert data.val.targets.bincount().tolist() == [2, 2, 2]  # a tenth of each class
    assert data.test.targets.tolist() == [1, 0, 2]
    assert data.test.inputs[:, 0, 32, 32].tolist() == pytest.approx([0, 80, 160], abs=3)
    assert abs(int(data.train.inputs[data.train.targets == 0][0, 0, 5, 5]) - 80) < 25
    large = load_dataset("tiny_imagenet", folder=str(tmp_path / "data"), image_size=224)
    assert large.input_shape == (3, 224, 224) and large.split_hash == data.split_hash
    assert large.train.inputs.shape[1:] == (3, 64, 64)
    assert large.train.select(torch.tensor([0, 1]))[0].shape == (2, 3, 224, 224)


def test_tiny_imagenet_holds_out_as_many_images_as_asked(tmp_path):
    write_tiny(tmp_path)
    data = load_dataset("tiny_imagenet", folder=str(tmp_path), held_out=0.05)
    assert data.val.targets.bincount().tolist() == [1, 1, 1]
    size = DATASETS["tiny_imagenet"].size
    assert (size({}).train, size({}).val) == (90_000, 10_000)
    assert (size({"held_out": 0.05}).train, size({"held_out": 0.05}).val) == (95_000, 5_000)


IMAGE, ANNOTATIONS = "train/n01/images/n01_0.JPEG", "val/val_annotations.txt"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda tree: (tree / IMAGE).write_bytes((tree / IMAGE).read_bytes()[:200]), r"n01_0\.JPEG: cannot be decoded"),
        (lambda tree: (tree / IMAGE).write_bytes(b"<html>"), r"n01_0\.JPEG: cannot be decoded"),
        (lambda tree: (tree / IMAGE).unlink(), "19 images of some classes and 20 of others"),
        (lambda tree: shutil.rmtree((tree / IMAGE).parent), "contains no images"),
        (lambda tree: (tree / "wnids.txt").unlink(), "wnids.txt: the list of classes is missing"),
        (lambda tree: (tree / ANNOTATIONS).unlink(), "val_annotations.txt: the file is missing"),
        (lambda tree: (tree / ANNOTATIONS).write_text("val_0.JPEG\tn99\n"), "without a known class"),
        (lambda tree: (tree / "val/images/val_1.JPEG").unlink(), r"val_1\.JPEG: the image is missing"),
    ],
)
def test_a_broken_tree_is_named(tmp_path, damage, sentence):
    damage(write_tiny(tmp_path / "data"))
    with pytest.raises(DataSetUnavailableError, match=sentence):
        load_dataset("tiny_imagenet", folder=str(tmp_path / "data"))


def write_folder(folder, counts=(20, 30), side=(40, 60)):
    for number, count in enumerate(counts):
        for image in range(count):
            write_image(folder / f"class{number}" / "deep" / f"{image}.png", 100 * number + image, side)


def test_a_folder_of_classes_is_split_by_class(tmp_path):
    write_folder(tmp_path / "own")
    data = load_dataset("image_folder", folder=str(tmp_path / "own"), image_size=16)
    assert data.class_names == ("class0", "class1") and data.input_shape == (3, 16, 16)
    assert [split.targets.bincount().tolist() for split in (data.train, data.val, data.test)] == [
        [14, 21],
        [2, 3],
        [4, 6],
    ]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("missing", "does not contain a sub-folder"),
        ("cut", r"0\.png: cannot be decoded"),
        ("too few", "too few images to train on"),
    ],
)
def test_an_unsuitable_folder_is_named(tmp_path, damage, sentence):
    root = tmp_path / "own"
    if damage == "cut":
        write_folder(root)
        path = root / "class0" / "deep" / "0.png"
        path.write_bytes(path.read_bytes()[:60])
    elif damage == "too few":
        write_folder(root, (1, 30))
    options = {"validation_fraction": 0.5, "test_fraction": 0.6} if damage == "too few" else {}
    with pytest.raises(DataSetUnavailableError, match=sentence):
        load_dataset("image_folder", folder=str(root), **options)

import dataclasses
import hashlib
import pickle
import tarfile

import numpy as np
import pytest
import torch

from tests.trainables.small_data import source_of
from trainables.datasets import DataSetUnavailableError, cifar as module

NAMES = {"cifar10": 10, "cifar100": 100}


def write_pickle(path, content):
    path.write_bytes(pickle.dumps(content, protocol=2))


@pytest.fixture
def write_tree(monkeypatch):
    """Write the published archive's folder in small: the same files, keys, types and pickle protocol."""

    def write(folder, name="cifar10", per_file=40):
        random, layout, classes = np.random.RandomState(0), module.LAYOUTS[name], NAMES[name]
        tree = folder / layout.member
        tree.mkdir(parents=True)
        for file in (*layout.train_files, layout.test_file):
            content = {b"data": random.randint(0, 256, (per_file, 3072)).astype(np.uint8), b"batch_label": b"x"}
            write_pickle(tree / file, {**content, layout.label_key: (np.arange(per_file) % classes).tolist()})
        write_pickle(tree / layout.names_file, {layout.names_key: [f"name {k}".encode() for k in range(classes)]})
        monkeypatch.setattr(module, "SAMPLES", (per_file * len(layout.train_files), per_file))
        return layout, tree

    return write


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["shuffled", "stratified"])
def test_images_classes_and_splits_are_read(tmp_path, write_tree, name, split):
    layout, tree = write_tree(tmp_path, name, per_file=200)
    data = module.load_cifar(name, folder=str(tmp_path), split=split)
    assert (data.classes, data.input_shape) == (NAMES[name], (3, 32, 32)) and data.class_names[1] == "name 1"
    total = 200 * len(layout.train_files)
    held = 0 if (name, split) == ("cifar100", "stratified") else total // 10  # 2 images a class give no tenth
    assert (len(data.train), len(data.val), len(data.test)) == (total - held, held, 200)
    first = pickle.loads((tree / layout.test_file).read_bytes())
    assert torch.equal(data.test.inputs, torch.from_numpy(first[b"data"].reshape(-1, 3, 32, 32)))
    assert data.test.targets.tolist() == first[layout.label_key] and data.test.targets.dtype == torch.int64
    assert data.train.augmentation is not None and data.val.augmentation is None
    inputs, _ = data.test.select(torch.arange(3))
    expected = (
        torch.from_numpy(first[b"data"][:3]).reshape(3, 3, 32, 32) / 255 - torch.tensor(layout.mean)[:, None, None]
    )
    torch.testing.assert_close(inputs, expected / torch.tensor(layout.std)[:, None, None])


def test_options_change_what_they_say(tmp_path, write_tree):
    write_tree(tmp_path, per_file=200)

    def load(**options):
        return module.load_cifar("cifar10", folder=str(tmp_path), **options)

    small = load(class_fraction=0.1, split="stratified")
    assert (len(small.train), len(small.val)) == (90, 100) and set(small.train.targets.bincount().tolist()) == {9}
    assert load(augment=False).train.augmentation is None
    large = load(image_size=48)
    assert large.input_shape == (3, 48, 48) and large.test.select(torch.tensor([0]))[0].shape == (1, 3, 48, 48)
    assert load().split_hash != small.split_hash and load().split_hash == load(augment=False).split_hash


def test_the_archive_is_checked_and_unpacked(tmp_path, write_tree, data_folder, monkeypatch):
    layout, tree = write_tree(tmp_path / "made")
    archive = tmp_path / "made" / layout.source.file_name
    with tarfile.open(archive, "w:gz") as file:
        file.add(tree, layout.member)
    monkeypatch.setitem(module.LAYOUTS, "cifar10", dataclasses.replace(layout, source=source_of(archive)))
    with pytest.raises(DataSetUnavailableError, match="download: true"):
        module.load_cifar("cifar10")
    assert len(module.load_cifar("cifar10", download=True).test) == 40
    (data_folder / archive.name).unlink()
    assert len(module.load_cifar("cifar10").test) == 40


class Evil:
    def __reduce__(self):
        return (print, ("code of the file was run",))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.unlink(), "the file is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), "cannot be read as a CIFAR file"),
        (lambda path: path.write_bytes(b"<html>not found</html>"), "cannot be read as a CIFAR file"),
        ({b"data": Evil()}, "references .*print, which no CIFAR file does"),
        (lambda path: write_pickle(path, [1, 2]), "does not contain a dictionary"),
        ({b"data": np.zeros((40, 100), np.uint8)}, "rows of 3,072"),
        ({b"labels": [10] * 40}, "labels outside 0 to 9"),
        ({b"data": np.zeros((5, 3072), np.uint8), b"labels": [0] * 5}, "contains 165 images; 200 are expected"),
    ],
    ids=["missing", "cut", "garbage", "code", "list", "narrow", "labels", "fewer"],
)
def test_broken_files_are_named_with_the_remedy(tmp_path, write_tree, capsys, damage, sentence):
    _, tree = write_tree(tmp_path)
    path = tree / "data_batch_3"
    if isinstance(damage, dict):
        write_pickle(path, {**pickle.loads(path.read_bytes()), **damage})
    else:
        damage(path)
    with pytest.raises(DataSetUnavailableError, match=rf"cifar-10-batches-py.*{sentence}.*download: true"):
        module.load_cifar("cifar10", folder=str(tmp_path))
    assert "code of the file" not in capsys.readouterr().out


def test_the_reader_agrees_with_torchvision(tmp_path, write_tree):
    from trainables.extensions.libraries import register_missing_operators

    register_missing_operators()
    datasets = pytest.importorskip("torchvision").datasets
    layout, tree = write_tree(tmp_path)

    # Read as latin-1, as torchvision does, the published files have text keys.
    for name in (*layout.train_files, "test_batch"):
        content = pickle.loads((tree / name).read_bytes())
        write_pickle(tree / name, {key.decode(): value for key, value in content.items()})

    def listed(*names):
        return [(name, hashlib.md5((tree / name).read_bytes()).hexdigest()) for name in names]

    class Small(datasets.CIFAR10):
        train_list = listed(*layout.train_files)
        test_list = listed("test_batch")

        def _load_meta(self):
            self.classes = []

    theirs = Small(str(tmp_path), train=True)
    ours, _, _ = module.read_folder(tree, layout)
    np.testing.assert_array_equal(theirs.data.transpose(0, 3, 1, 2), ours.images)
    assert theirs.targets == ours.targets.tolist()

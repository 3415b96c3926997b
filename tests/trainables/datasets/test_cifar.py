import dataclasses
import hashlib
import pickle
import tarfile

import numpy as np
import pytest
import torch

from trainables.datasets import DataSetUnavailableError, cifar as module
from trainables.datasets.cache import Source

NAMES = {"cifar10": 10, "cifar100": 100}


def write_pickle(path, content):
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_tree(folder, name, per_file=40, seed=0):
    """Write the published archive's folder in small: the same files, keys, types and pickle protocol."""
    random = np.random.RandomState(seed)
    published = module.LAYOUTS[name]
    tree = folder / published.member
    tree.mkdir(parents=True)
    classes = NAMES[name]
    for file in (*published.train_files, published.test_file):
        labels = (np.arange(per_file) % classes).tolist()
        content = {b"data": random.randint(0, 256, (per_file, 3072)).astype(np.uint8), b"batch_label": b"x"}
        content[published.label_key] = labels
        write_pickle(tree / file, content)
    write_pickle(tree / published.names_file, {published.names_key: [f"name {k}".encode() for k in range(classes)]})
    train = per_file * len(published.train_files)
    return dataclasses.replace(published, train_samples=train, test_samples=per_file), tree


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["shuffled", "stratified"])
def test_images_classes_and_splits_are_read(tmp_path, name, split):
    layout, tree = write_tree(tmp_path, name, per_file=200)
    data = module.load_cifar(name, folder=str(tmp_path), split=split, layout=layout)
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


def test_options_change_what_they_say(tmp_path):
    layout, _ = write_tree(tmp_path, "cifar10", per_file=200)

    def load(**options):
        return module.load_cifar("cifar10", folder=str(tmp_path), layout=layout, **options)

    small = load(class_fraction=0.1, split="stratified")
    assert (len(small.train), len(small.val)) == (90, 100) and set(small.train.targets.bincount().tolist()) == {9}
    assert load(augment=False).train.augmentation is None
    large = load(image_size=48)
    assert large.input_shape == (3, 48, 48) and large.test.select(torch.tensor([0]))[0].shape == (1, 3, 48, 48)
    assert load().split_hash != small.split_hash and load().split_hash == load(augment=False).split_hash


def test_the_archive_is_checked_and_unpacked(tmp_path):
    layout, tree = write_tree(tmp_path / "made", "cifar10")
    archive = tmp_path / "made" / layout.source.file_name
    with tarfile.open(archive, "w:gz") as file:
        file.add(tree, layout.member)
    checksum = "md5:" + hashlib.md5(archive.read_bytes()).hexdigest()
    layout = dataclasses.replace(layout, source=Source(archive.as_uri(), archive.name, checksum))
    with pytest.raises(DataSetUnavailableError, match="download: true"):
        module.load_cifar("cifar10", folder=str(tmp_path / "cache"), layout=layout)
    data = module.load_cifar("cifar10", folder=str(tmp_path / "cache"), download=True, layout=layout)
    assert len(data.test) == 40
    (tmp_path / "cache" / archive.name).unlink()
    assert len(module.load_cifar("cifar10", folder=str(tmp_path / "cache"), layout=layout).test) == 40


class Evil:
    def __reduce__(self):
        return (print, ("code of the file was run",))


def damaged(path, layout, damage):
    content = pickle.loads(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:3000])
    elif damage == "garbage":
        path.write_bytes(b"<html>not found</html>")
    elif damage == "code":
        write_pickle(path, {**content, b"data": Evil()})
    elif damage == "list":
        write_pickle(path, [1, 2])
    elif damage == "narrow":
        write_pickle(path, {**content, b"data": content[b"data"][:, :100]})
    elif damage == "labels":
        write_pickle(path, {**content, layout.label_key: [10] * len(content[layout.label_key])})
    elif damage == "fewer":
        write_pickle(path, {b"data": content[b"data"][:5], layout.label_key: content[layout.label_key][:5]})


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("missing", "the file is missing"),
        ("cut", "cannot be read as a CIFAR file"),
        ("garbage", "cannot be read as a CIFAR file"),
        ("code", "references .*print, which no CIFAR file does"),
        ("list", "does not contain a dictionary"),
        ("narrow", "rows of 3,072"),
        ("labels", "labels outside 0 to 9"),
        ("fewer", "contains 165 images; 200 are expected"),
    ],
)
def test_broken_files_are_named_with_the_remedy(tmp_path, capsys, damage, sentence):
    layout, tree = write_tree(tmp_path, "cifar10")
    damaged(tree / "data_batch_3", layout, damage)
    with pytest.raises(DataSetUnavailableError, match=rf"cifar-10-batches-py.*{sentence}.*download: true"):
        module.load_cifar("cifar10", folder=str(tmp_path), layout=layout)
    assert "code of the file" not in capsys.readouterr().out


def test_the_reader_agrees_with_torchvision(tmp_path):
    from trainables.extensions.libraries import register_missing_operators

    register_missing_operators()
    datasets = pytest.importorskip("torchvision").datasets
    layout, tree = write_tree(tmp_path, "cifar10")

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

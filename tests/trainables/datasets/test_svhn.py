import hashlib

import numpy as np
import pytest
import scipy.io
import torch

from trainables.datasets import DataSetUnavailableError, svhn as module
from trainables.datasets.cache import Source


def write_mat(path, samples, **changes):
    random = np.random.RandomState(samples)
    content = {
        "X": random.randint(0, 256, (32, 32, 3, samples)).astype(np.uint8),
        "y": (np.arange(samples) % 10 + 1).astype(np.uint8)[:, None],
    }
    scipy.io.savemat(path, {**content, **changes}, do_compression=True)
    return content


def source_of(path):
    return Source("http://127.0.0.1:9/", path.name, "md5:" + hashlib.md5(path.read_bytes()).hexdigest())


def load(folder):
    sources = tuple(source_of(folder / f"{part}_32x32.mat") for part in ("train", "test"))
    return module.load_svhn(folder=str(folder), sources=sources)


def test_images_and_digits_are_read(tmp_path):
    write_mat(tmp_path / "train_32x32.mat", 100)
    content = write_mat(tmp_path / "test_32x32.mat", 30)
    data = load(tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (90, 10, 30)
    assert data.val.targets.sort().values.tolist() == list(range(10))
    assert data.test.targets.tolist() == (content["y"][:, 0] % 10).tolist()
    assert torch.equal(data.test.inputs[4], torch.from_numpy(content["X"][:, :, :, 4].transpose(2, 0, 1).copy()))
    assert data.train.augmentation.flip is False


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("cut", "MATLAB file"),
        ("garbage", "MATLAB file"),
        ("labels", "label from 1 to 10"),
        ("shape", r"X \[32, 32, 3, N\]"),
        ("checksum", "md5 is"),
    ],
)
def test_broken_files_are_named(tmp_path, damage, sentence):
    write_mat(tmp_path / "test_32x32.mat", 30)
    train = tmp_path / "train_32x32.mat"
    changes = {"labels": {"y": np.full((100, 1), 11, np.uint8)}, "shape": {"X": np.zeros((3, 32, 32, 100), np.uint8)}}
    write_mat(train, 100, **changes.get(damage, {}))
    good = source_of(train)
    if damage in ("cut", "checksum"):
        train.write_bytes(train.read_bytes()[:5000])
    elif damage == "garbage":
        train.write_bytes(b"<html>" * 100)
    sources = (good if damage == "checksum" else source_of(train), source_of(tmp_path / "test_32x32.mat"))
    with pytest.raises(DataSetUnavailableError, match=sentence):
        module.load_svhn(folder=str(tmp_path), sources=sources)


def test_missing_files_name_the_published_address(tmp_path):
    with pytest.raises(DataSetUnavailableError, match=r"train_32x32\.mat.*ufldl\.stanford\.edu"):
        module.load_svhn(folder=str(tmp_path))

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainables.small_data import source_of
from trainables.datasets import DataSetUnavailableError, fashion_mnist as module
from trainables.datasets.cache import checksum_of


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", size) for size in array.shape)
    return header + array.tobytes()


def write_files(folder, samples=100):
    random = np.random.RandomState(0)
    arrays = {}
    for part, count in (("train", samples), ("test", 20)):
        arrays[f"{part}_images"] = random.randint(0, 256, (count, 28, 28)).astype(np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 10).astype(np.uint8)
    (folder / "fashion-mnist").mkdir()
    for key, array in arrays.items():
        (folder / module.SOURCES[key].file_name).write_bytes(gzip.compress(idx(array)))
    return arrays


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load the files in the test's folder, whatever they contain."""

    def loaded(**options):
        for key, source in module.SOURCES.items():
            checksum = source_of(tmp_path / source.file_name).checksum
            monkeypatch.setitem(module.SOURCES, key, replace(source, checksum=checksum))
        return module.load_fashion_mnist(str(tmp_path), **options)

    return loaded


def test_files_packed_again_are_the_published_ones_and_nothing_is_written_beside_them(tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.setattr(module, "PACKAGED", tmp_path)
    for key, source in module.SOURCES.items():
        path = tmp_path / source.file_name
        checksum = "unpacked md5:" + checksum_of(path, "unpacked md5")
        monkeypatch.setitem(module.SOURCES, key, replace(source, checksum=checksum))
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1, mtime=1))
    labels = tmp_path / module.SOURCES["test_labels"].file_name
    before = sorted((tmp_path / "fashion-mnist").iterdir())
    assert len(module.load_fashion_mnist().train) == 90
    assert sorted((tmp_path / "fashion-mnist").iterdir()) == before
    labels.write_bytes(gzip.compress(idx(np.zeros(20, np.uint8))))
    with pytest.raises(DataSetUnavailableError, match="its unpacked md5 is"):
        module.load_fashion_mnist()
    labels.write_bytes(b"no gzip")
    with pytest.raises(DataSetUnavailableError, match="cannot be unpacked"):
        module.load_fashion_mnist()


def test_a_share_of_the_training_images_and_flipped_labels(tmp_path, load, monkeypatch):
    write_files(tmp_path)
    monkeypatch.setattr(module, "TRAINING_SAMPLES", 90)
    whole, share = load(), load(samples=30)
    assert np.bincount(share.train.targets).tolist() == [3] * 10
    assert torch.equal(share.val.targets, whole.val.targets) and len(share.test) == 20
    noisy = load(label_noise=0.2)
    assert (noisy.train.targets != whole.train.targets).sum() == 18
    assert torch.equal(noisy.val.targets, whole.val.targets)


@pytest.mark.skipif(not (module.PACKAGED / "fashion-mnist").is_dir(), reason="Debian's data set is not installed")
def test_debians_package_is_found_by_itself():
    data = module.load_fashion_mnist(samples=6000)
    assert (len(data.train), len(data.val), len(data.test)) == (6000, 6000, 10_000)


def test_a_missing_file_names_its_address(tmp_path):
    with pytest.raises(DataSetUnavailableError, match=r"fashion-mnist.*download: true"):
        module.load_fashion_mnist(folder=str(tmp_path))

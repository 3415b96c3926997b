import numpy as np
import pytest
import scipy.io
import torch

from tests.trainables.small_data import source_of
from trainables.datasets import DataSetUnavailableError, svhn as module


def write_mat(path, samples):
    random = np.random.RandomState(samples)
    content = {
        "X": random.randint(0, 256, (32, 32, 3, samples)).astype(np.uint8),
        "y": (np.arange(samples) % 10 + 1).astype(np.uint8)[:, None],
    }
    scipy.io.savemat(path, content, do_compression=True)
    return content


def checksums_of(folder, monkeypatch):
    """Take the files in a folder for the published ones."""
    monkeypatch.setattr(module, "SOURCES", [source_of(folder / source.file_name) for source in module.SOURCES])


def test_images_and_digits_are_read(tmp_path, monkeypatch):
    write_mat(tmp_path / "train_32x32.mat", 100)
    content = write_mat(tmp_path / "test_32x32.mat", 30)
    checksums_of(tmp_path, monkeypatch)
    data = module.load_svhn(str(tmp_path))
    assert (len(data.train), len(data.val), len(data.test)) == (90, 10, 30)
    assert data.val.targets.sort().values.tolist() == list(range(10))
    assert data.test.targets.tolist() == (content["y"][:, 0] % 10).tolist()
    assert torch.equal(data.test.inputs[4], torch.from_numpy(content["X"][:, :, :, 4].transpose(2, 0, 1).copy()))
    assert data.train.augmentation.flip is False


def test_other_files_than_the_published_ones_are_refused(tmp_path, monkeypatch):
    for part, samples in (("train", 100), ("test", 30)):
        write_mat(tmp_path / f"{part}_32x32.mat", samples)
    checksums_of(tmp_path, monkeypatch)
    (tmp_path / "train_32x32.mat").write_bytes(b"other")
    with pytest.raises(DataSetUnavailableError, match="sha256 is"):
        module.load_svhn(folder=str(tmp_path))

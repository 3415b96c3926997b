import gzip

import numpy as np
import pytest
import torch

from trainables.datasets import DataSetUnavailableError, digits as module, load_dataset
from trainables.datasets.base import stratified_split

SPLIT_HASH = "afaed92afffb5040c3f87c128f23a4d71f1e7aa0060eed52513ffb21942bbc8f"


def test_the_file_holds_what_scikit_learn_loads():
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, targets = module.read_digits(module.digits_file())
    np.testing.assert_array_equal(images, bunch.images)
    np.testing.assert_array_equal(targets, bunch.target)


def test_splits_are_disjoint_complete_stratified_and_pinned():
    data = load_dataset("digits")
    assert data.split_hash == SPLIT_HASH
    assert (len(data.train), len(data.val), len(data.test)) == (1079, 359, 359)
    assert len(data.train) + len(data.val) + len(data.test) == 1797
    _, targets = module.read_digits(module.digits_file())
    parts = stratified_split(targets, module.HELD_OUT_FRACTIONS, module.SPLIT_SEED)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1797))
    for label in range(10):
        shares = [float((split.targets == label).double().mean()) for split in (data.train, data.val, data.test)]
        assert max(shares) - min(shares) < 0.005


@pytest.mark.parametrize("damage", ["truncated", "not_gzip", "wrong_columns", "wrong_values"])
def test_broken_files_are_named(tmp_path, damage):
    path = tmp_path / "digits.csv.gz"
    good = module.digits_file().read_bytes()
    row = ",".join(["3"] * 65)
    content = {
        "truncated": good[: len(good) // 2],
        "not_gzip": b"hello",
        "wrong_columns": gzip.compress(b"1,2,3\n"),
        "wrong_values": gzip.compress(row.replace("3", "99", 1).encode()),
    }[damage]
    path.write_bytes(content)
    with pytest.raises(DataSetUnavailableError, match=r"digits\.csv\.gz.*reinstall"):
        module.read_digits(path)


def test_enlarged_digits_keep_the_split_and_show_the_same_digits():
    small, large = load_dataset("digits"), load_dataset("digits_32")
    assert large.split_hash == small.split_hash and large.input_shape == (3, 32, 32)
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(large, part).targets, getattr(small, part).targets)
    images, targets = module.read_digits(module.digits_file())
    back = torch.nn.functional.avg_pool2d(large.test.inputs.float(), 4)[:, 0] * 16 / 255
    parts = stratified_split(targets, module.HELD_OUT_FRACTIONS, module.SPLIT_SEED)
    original = torch.from_numpy(images[parts[2]]).float()
    assert torch.corrcoef(torch.stack([back.flatten(), original.flatten()]))[0, 1] > 0.9
    assert torch.equal(large.test.inputs[:, 0], large.test.inputs[:, 2])
    inputs, _ = large.train.select(torch.arange(len(large.train)))
    assert inputs.dtype == torch.float32 and abs(float(inputs.mean())) < 1e-3 and abs(float(inputs.std()) - 1) < 1e-3
    assert large.train.augmentation is not None and large.val.augmentation is None
    assert load_dataset("digits_32", augment=False).train.augmentation is None

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from trainables.datasets import DataSetUnavailableError, load_dataset

INPUTS = np.random.RandomState(0).normal(3, 2, (100, 6)).astype(np.float32)
TARGETS = np.arange(100) % 4
SPLIT = np.array(["train"] * 60 + ["val"] * 20 + ["test"] * 20)


def write(path, inputs=INPUTS, targets=TARGETS, split=None):
    if path.suffix == ".npz":
        np.savez(path, inputs=inputs, targets=targets, **({} if split is None else {"split": split}))
    else:
        columns = {"inputs": [list(map(float, row)) for row in inputs], "target": targets.tolist()}
        parquet.write_table(pa.table(columns if split is None else {**columns, "split": split.tolist()}), path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_arrays_are_read_and_split_by_class(tmp_path, suffix):
    path = write(tmp_path / f"own{suffix}")
    data = load_dataset("arrays", path=str(path), standardise=False)
    assert (data.classes, data.input_shape) == (4, (6,))
    assert [len(split) for split in (data.train, data.val, data.test)] == [72, 8, 20]
    for inputs, target in zip(data.val.inputs, data.val.targets, strict=True):
        row = int(np.abs(INPUTS - inputs.numpy()).sum(1).argmin())
        assert np.array_equal(INPUTS[row], inputs.numpy()) and TARGETS[row] == target


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_a_given_split_is_kept(tmp_path, suffix):
    data = load_dataset("arrays", path=str(write(tmp_path / f"own{suffix}", split=SPLIT)), standardise=False)
    assert torch.equal(data.test.inputs, torch.from_numpy(INPUTS[80:]))


@pytest.mark.parametrize("form", [lambda y: y > 0, lambda y: (y > 0).astype(np.float32)[:, None]])
def test_labels_of_a_binary_cross_entropy_are_two_classes(tmp_path, form):
    data = load_dataset("arrays", path=str(write(tmp_path / "own.npz", targets=form(TARGETS))))
    assert data.classes == 2 and data.train.targets.float().mean() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize(
    ("inputs", "targets", "split", "sentence"),
    [
        (INPUTS[:50], TARGETS, None, r"not \[N, \.\.\.\] and \[N\]"),
        (INPUTS, TARGETS * 2, None, "without gaps"),
        (INPUTS, TARGETS - 1, None, "without gaps"),
        (INPUTS, TARGETS / 2, None, "not whole numbers"),
        (np.where(INPUTS > 8, np.nan, INPUTS), TARGETS, None, "not finite numbers"),
        (INPUTS, TARGETS, np.where(SPLIT == "val", "valid", SPLIT), "use train, val and test"),
        (INPUTS, TARGETS, np.where(SPLIT == "val", "train", SPLIT), "no samples in split val"),
        (INPUTS, np.array([{}] * 100), None, "pickled objects"),
        (np.where(INPUTS > 8, 1e300, INPUTS.astype(np.float64)), TARGETS, None, "not finite numbers"),
        (INPUTS.astype(complex), TARGETS, None, "not finite numbers"),
        (INPUTS.astype("m8[s]"), TARGETS, None, "not finite numbers"),
        (INPUTS, TARGETS.astype("m8[s]"), None, "not whole numbers"),
        (INPUTS, np.where(TARGETS, TARGETS, np.inf), None, "without gaps"),
        (INPUTS, np.where(TARGETS, TARGETS, np.nan), None, "not whole numbers"),
        (INPUTS[:0], TARGETS[:0], None, r"inputs \(0, 6\)"),
        (INPUTS[:, :0], TARGETS, None, r"inputs \(100, 0\)"),
        (INPUTS, TARGETS * 0, None, "targets of one class"),
        (INPUTS, TARGETS, np.array([SPLIT, SPLIT]).T, "one split per sample"),
        (INPUTS, TARGETS, np.arange(100), "use train, val and test"),
    ],
)
def test_inconsistent_arrays_are_named(tmp_path, inputs, targets, split, sentence):
    with pytest.raises(DataSetUnavailableError, match=sentence):
        load_dataset("arrays", path=str(write(tmp_path / "own.npz", inputs, targets, split)))


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_arrays_that_are_not_used_are_named_and_texts_of_bytes_are_texts(tmp_path, suffix):
    path, arrays = tmp_path / f"own{suffix}", {"inputs": INPUTS, "targets": TARGETS, "split": SPLIT.astype("S")}
    if suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name, array in {**arrays, "weights": np.ones(100)}.items():
                file[name] = array
            file["elsewhere"] = h5py.ExternalLink("/dev/zero", "/x")
    else:
        np.savez(path, **arrays, weights=np.ones(100), elsewhere=np.array([{}]))
    data = load_dataset("arrays", path=str(path), standardise=False)
    assert torch.equal(data.test.inputs, torch.from_numpy(INPUTS[80:]))
    (note,) = data.notes
    assert "weights" in note and "elsewhere" in note


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "missing", "columns"])
def test_broken_files_are_named(tmp_path, suffix, damage):
    path = write(tmp_path / f"own{suffix}")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:400])
    elif damage == "garbage":
        path.write_bytes(b"garbage" * 100)
    elif damage == "missing":
        path.unlink()
    elif suffix == ".npz":
        np.savez(path, x=INPUTS)
    else:
        parquet.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(DataSetUnavailableError, match=rf"own\{suffix}"):
        load_dataset("arrays", path=str(path))

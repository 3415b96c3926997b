"""Corrupted and other data beside a data set: computed once a node, read from CIFAR-10-C's files, checked before."""

from pathlib import Path

import numpy as np
import pytest
import torch

import trainables.datasets.splits.corrupted as corrupted_file
from trainables.datasets import DataSet, load_dataset
from trainables.datasets.splits import EVALUATION_SPLITS, build_split
from trainables.datasets.splits.corrupted import corrupted


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load_dataset("digits_stand_in", test_samples=8)


def clean(digits: DataSet) -> np.ndarray:
    return digits.test.inputs.numpy().transpose(0, 2, 3, 1)


def test_a_corrupted_split_is_the_test_split_corrupted_and_made_once_a_node(
    digits: DataSet, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift = build_split({"name": "corrupted", "kinds": ["fog", "contrast"], "severities": [2, 5]})
    assert shift.names == ("corrupted_fog_2", "corrupted_fog_5", "corrupted_contrast_2", "corrupted_contrast_5")
    assert shift.fault(digits) is None and shift.same_classes and not shift.detected
    split = shift.split(digits, "corrupted_fog_5")
    wanted = corrupted(clean(digits), "fog", 5).transpose(0, 3, 1, 2)
    assert np.array_equal(split.inputs.numpy(), wanted) and torch.equal(split.targets, digits.test.targets)
    assert split.preprocessing == digits.test.preprocessing and split.streamed
    monkeypatch.setattr(corrupted_file, "corrupted", lambda *_: pytest.fail("made again"))
    assert torch.equal(shift.split(digits, "corrupted_fog_5").inputs, split.inputs)
    (file,) = (data_folder / "shared").glob("corrupted-*")
    assert not file.stat().st_mode & 0o022


def test_a_copy_that_others_could_have_written_is_made_again(digits: DataSet, data_folder: Path) -> None:
    shift = build_split({"name": "corrupted", "kinds": ["contrast"], "severities": [1]})
    wanted = shift.split(digits, "corrupted_contrast_1").inputs.clone()
    (file,) = (data_folder / "shared").glob("corrupted-*")
    torch.save(torch.zeros_like(wanted), file)
    file.chmod(0o666)
    assert torch.equal(shift.split(digits, "corrupted_contrast_1").inputs, wanted)


def write_files(folder: Path, digits: DataSet, kinds: tuple[str, ...] = ("fog",)) -> np.ndarray:
    """Write files as CIFAR-10-C has them: the test images five times, severity by severity, and their labels."""
    folder.mkdir(exist_ok=True)
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, size=(5 * len(digits.test), 32, 32, 3)).astype(np.uint8)
    for kind in kinds:
        np.save(folder / f"{kind}.npy", images)
    np.save(folder / "labels.npy", np.tile(digits.test.targets.numpy(), 5).astype(np.uint8))
    return images


def test_the_files_of_cifar_10_c_are_read_where_they_lie(digits: DataSet, data_folder: Path, tmp_path: Path) -> None:
    images = write_files(tmp_path / "CIFAR-10-C", digits)
    entry = {"name": "corrupted", "kinds": ["fog"], "severities": [1, 4], "folder": str(tmp_path / "CIFAR-10-C")}
    shift = build_split(entry)
    assert shift.fault(digits) is None
    split = shift.split(digits, "corrupted_fog_4")
    assert np.array_equal(split.inputs.numpy(), images[24:32].transpose(0, 3, 1, 2))
    assert torch.equal(split.targets, digits.test.targets) and not (data_folder / "shared").exists()
    inputs, targets = split.select(torch.tensor([0, 7]))
    assert inputs.shape == (2, 3, 32, 32) and inputs.dtype == torch.float32 and targets.dtype == torch.int64


def test_files_that_do_not_fit_are_named(digits: DataSet, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    write_files(folder, digits)
    shift = build_split({"name": "corrupted", "kinds": ["fog", "snow"], "severities": [1], "folder": str(folder)})
    assert "snow.npy: the file is missing" in str(shift.fault(digits))
    fog = build_split({"name": "corrupted", "kinds": ["fog"], "severities": [1], "folder": str(folder)})
    for rule, name, array in (
        ("has labels up to 99", "labels.npy", np.full(40, 99, np.uint8)),
        ("beside 39 labels", "labels.npy", np.zeros(39, np.uint8)),
        ("not uint8 images [N, 32, 32, 3]", "fog.npy", np.zeros((40, 64, 64, 3), np.uint8)),
        ("not uint8 images", "fog.npy", np.zeros((40, 32, 32, 3), np.float32)),
    ):
        write_files(folder, digits)
        np.save(folder / name, array)
        assert rule in str(fog.fault(digits))
    (folder / "fog.npy").write_bytes(b"no array")
    assert "cannot be read as .npy" in str(fog.fault(digits))
    np.save(folder / "fog.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "cannot be read as .npy" in str(fog.fault(digits))


def test_what_is_no_image_is_not_corrupted(tmp_path: Path) -> None:
    shift = build_split({"name": "corrupted", "kinds": ["fog"], "severities": [1]})
    assert "digits cannot be corrupted: inputs are not stored as images" in str(shift.fault(load_dataset("digits")))
    frost = build_split({"name": "corrupted", "kinds": ["frost"], "severities": [1]})
    if frost.fault(load_dataset("digits_stand_in", test_samples=8)) is not None:  # imagecorruptions is not installed
        assert "leave out frost" in str(frost.fault(load_dataset("digits_stand_in", test_samples=8)))


def test_other_images_become_those_of_the_data_set(digits: DataSet) -> None:
    grey = {"name": "digits_stand_in", "channels": 1, "size": 32, "test_samples": 5}
    shift = build_split({"name": "other", "dataset": grey, "label": "grey"})
    assert shift.names == ("other_grey",) and shift.fault(digits) is None and shift.detected
    split = shift.split(digits, "other_grey")
    assert split.preprocessing == digits.test.preprocessing and len(split) == 5
    assert torch.equal(split.inputs, digits.test.inputs[:5])  # grey digits in three channels are these digits
    small = build_split({"name": "other", "dataset": {**grey, "size": 16}, "samples": 2}).split(digits, "")
    assert small.inputs.shape == (2, 3, 32, 32) and small.inputs.dtype == torch.uint8
    coloured = load_dataset("digits_stand_in", channels=1)
    back = build_split({"name": "other", "dataset": {**grey, "channels": 3}}).split(coloured, "")
    assert torch.equal(back.inputs, split.inputs[:, :1])


def test_other_data_that_do_not_fit_say_why(digits: DataSet) -> None:
    def fault(dataset: dict[str, object], **more: object) -> str:
        return str(build_split({"name": "other", "dataset": dataset, **more}).fault(digits))

    assert "its inputs are float32 (1, 8, 8), not uint8 (3, 32, 32)" in fault({"name": "digits"})
    assert "it has no split 'tset'; it has train, val, test" in fault({"name": "digits_32"}, split="tset")
    assert "has 7 classes, digits_stand_in 10" in fault({"name": "digits_stand_in", "classes": 7}, same_classes=True)
    assert fault({"name": "digits_stand_in", "classes": 7}) == "None"
    assert "missing" in fault({"name": "svhn"})
    tokens = load_dataset("digits_stand_in", form="tokens")
    words = build_split({"name": "other", "dataset": {"name": "digits_stand_in", "form": "tokens", "classes": 3}})
    assert words.fault(tokens) is None and len(words.split(tokens, "")) == len(tokens.test)


def test_kinds_and_severities_are_checked() -> None:
    component = EVALUATION_SPLITS["corrupted"]
    assert (
        "fgo" in component.faults({"kinds": ["fgo"]})[0] and "must be different" in component.faults({"kinds": []})[0]
    )
    assert "severities = [0]" in component.faults({"severities": [0]})[0]
    assert "severities = [1, 1]" in component.faults({"severities": [1, 1]})[0]
    assert "label" in EVALUATION_SPLITS["other"].faults({"dataset": "svhn", "label": "No Word"})[0]
    assert len(build_split({"name": "corrupted"}).names) == 75

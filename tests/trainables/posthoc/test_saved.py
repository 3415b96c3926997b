"""Every fitted method is read back to the bit, from a file whose reading runs none of its contents."""

import json

import numpy as np
import pytest

from tests.trainables.posthoc.test_base import OPTIONS, logits_and_targets
from trainables.posthoc import POSTHOC, Calibrator, fit
from trainables.posthoc.saved import (
    FORMAT,
    UnreadableCalibratorError,
    UnsavedCalibratorError,
    load_calibrator,
    save_calibrator,
)


@pytest.mark.parametrize("name", sorted(method.name for method in POSTHOC.built_in()))
def test_a_calibrator_is_read_back_to_the_bit(name, tmp_path):
    logits, targets = logits_and_targets()
    fitted, path = fit(name, logits, targets, **OPTIONS.get(name, {})), tmp_path / "calibrator.npz"
    save_calibrator(fitted, path, {"classes": np.array(["a", "b", "c", "d"]), "inputs": "logits"})
    read, extra = load_calibrator(path)
    assert type(read) is type(fitted) and read.parameters == fitted.parameters
    np.testing.assert_array_equal(read(logits), fitted(logits))
    assert extra["classes"].tolist() == ["a", "b", "c", "d"] and extra["inputs"] == "logits"
    assert [file.name for file in tmp_path.iterdir()] == ["calibrator.npz"]


class Outside(Calibrator):
    """A calibrator of another package."""

    def _probabilities(self, logits):
        return np.full(logits.shape, 1 / logits.shape[1])


def test_a_calibrator_of_another_package_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(UnsavedCalibratorError):
        save_calibrator(Outside("outside", {}, 2), tmp_path / "calibrator.npz", {})
    assert not [*tmp_path.iterdir()]


def described(**changed):
    state = {
        "dict": {"name": "temperature", "classes": 2, "parameters": {"dict": {}}, "temperature": 1.0, "gamma": 0.0}
    }
    kind = "trainables.posthoc.focal_map:FocalTemperatureCalibrator"
    return {"format": FORMAT, "calibrator": {"class": kind, "state": state}, "extra": {"dict": {}}} | changed


def write(path, description, **arrays):
    np.savez(path, description=np.array(json.dumps(description)), **arrays)


@pytest.mark.parametrize(
    "description",
    [
        described(format=99),
        described(calibrator={"class": "os:system", "state": {"dict": {}}}),
        described(calibrator={"class": "trainables.posthoc.base:importlib", "state": {"dict": {}}}),
        described(calibrator={"class": "trainables.posthoc.base:fit", "state": {"dict": {}}}),
        described(calibrator={"class": "trainables.posthoc.base:Calibrator", "state": {"dict": {}}}),
        described(calibrator={"class": "trainables.posthoc.none_such:Calibrator", "state": {"dict": {}}}),
        described(
            calibrator={"class": "trainables.posthoc.focal_map:FocalTemperatureCalibrator", "state": {"dict": {}}}
        ),
        described(extra={"dict": {"classes": {"array": "missing"}}}),
        described(extra={"dict": {"classes": {"unknown": 1}}}),
        {"format": FORMAT},
        [],
        7,
    ],
)
def test_damaged_or_hostile_files_are_refused(description, tmp_path):
    path = tmp_path / "calibrator.npz"
    write(path, described())
    load_calibrator(path)
    write(path, description)
    with pytest.raises(UnreadableCalibratorError):
        load_calibrator(path)


def test_cut_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "calibrator.npz"
    save_calibrator(fit("temperature", *logits_and_targets()), path, {})
    whole = path.read_bytes()
    for contents in (b"", b"no archive", whole[: len(whole) // 2], whole[:-30]):
        path.write_bytes(contents)
        with pytest.raises(UnreadableCalibratorError):
            load_calibrator(path)
    np.savez(path, description=np.array([{"pickled": object}], dtype=object))
    with pytest.raises(UnreadableCalibratorError):
        load_calibrator(path)
    with pytest.raises(FileNotFoundError):
        load_calibrator(tmp_path / "none.npz")

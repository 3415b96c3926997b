"""Entries of `evaluation.splits` beyond the data set's own: as the file has them, resolved, and what they break."""

from pathlib import Path
from typing import Any

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.costs import measured_plan
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.loading import build_spec, load_spec, reopened_spec
from trainables.datasets.splits.corrupted import KINDS

VALUES: dict[str, Any] = {
    "dataset": {"name": "digits_stand_in", "train_samples": 160, "test_samples": 16, "validation_samples": 16},
    "scheduler": {"name": "none", "max_epochs": 1},
    "space": {"loss": "cross_entropy", "architecture": {"name": "mlp", "width": 8}, "optimizer": "sgd"},
}


def spec_of(*splits: Any, **more: Any):
    return build_spec({**VALUES, **more, "evaluation": {"splits": [*splits], "curvature": False, "bootstrap": 0}})


def faults(*splits: Any) -> str:
    with pytest.raises(InvalidSearchSpace) as raised:
        spec_of(*splits)
    return str(raised.value)


def test_shifts_are_written_out_and_read_again() -> None:
    spec = spec_of("test", {"corrupted": {"kinds": ["fog"], "severities": [1, 3]}}, {"other": {"dataset": "svhn"}})
    assert spec.evaluation.own_splits == ["val", "test"]
    fog, svhn = spec.evaluation.shifts
    assert fog == {"name": "corrupted", "kinds": ["fog"], "severities": [1, 3], "logits": False}
    assert svhn["dataset"]["name"] == "svhn" and svhn["dataset"]["augment"] is True and not svhn["same_classes"]
    again = reopened_spec(spec.resolved(), "sweep.yaml")
    assert again.evaluation == spec.evaluation and again.resolved() == spec.resolved()


def test_all_faults_are_told_at_once_with_the_nearest_name() -> None:
    found = faults(
        {"corupted": {}},
        {"corrupted": {"kind": ["fog"]}},
        {"other": {"dataset": "svhnn"}},
        {"other": {}},
        {"a": 1, "b": 2},
    )
    assert "evaluation.splits[0]: unknown evaluation split 'corupted'" in found and "'corrupted'" in found
    assert "evaluation.splits[1].kind" in found and "did you mean 'kinds'?" in found
    assert "evaluation.splits[2].dataset: unknown data set 'svhnn'" in found and "did you mean 'svhn'?" in found
    assert "evaluation.splits[3]" in found and "needs dataset" in found
    assert "evaluation.splits[4]" in found and "must have one key" in found
    assert "kinds = ['fgo'] must be different ones of" in faults({"corrupted": {"kinds": ["fgo"]}})
    assert "must be a mapping of options" in faults({"corrupted": "fog"})


def test_a_split_is_measured_once_and_detection_needs_the_test_split() -> None:
    fog = {"corrupted": {"kinds": ["fog"], "severities": [1]}}
    assert "corrupted_fog_1 is measured twice" in faults("test", fog, fog)
    two = ({"other": {"dataset": "svhn"}}, {"other": {"dataset": "svhn", "split": "train", "label": "seen"}})
    assert "compared with the test split, which is not measured" in faults("val", two[0])
    assert len(spec_of("test", *two).evaluation.shifts) == 2


def test_other_data_are_looked_at_before_anything_is_trained() -> None:
    spec = spec_of("test", {"corrupted": {"kinds": ["fog"]}}, {"other": {"dataset": "digits"}})
    with pytest.raises(InvalidSearchSpace, match=r"evaluation\.splits\[3\]: digits: its inputs are float32"):
        prepare_dataset(spec)
    with pytest.raises(InvalidSearchSpace, match=r"evaluation\.splits\[2\]: digits cannot be corrupted"):
        prepare_dataset(spec_of("test", {"corrupted": {"kinds": ["fog"]}}, dataset="digits"))


def test_a_rehearsal_measures_less_of_what_needs_no_download() -> None:
    values = {**VALUES, "dataset": "cifar10"}
    splits = ["test", {"corrupted": {"folder": "/CIFAR-10-C"}}, {"other": {"dataset": "svhn"}}]
    spec = load_spec({**values, "evaluation": {"splits": splits}}, rehearse=True)
    corrupted, other = spec.evaluation.shifts
    assert len(corrupted["kinds"]) == 2 and "folder" not in corrupted and corrupted["severities"] == [1, 5]
    assert corrupted["samples"] == other["samples"] == 100 and other["dataset"]["name"] == "digits_stand_in"
    assert any("corrupted data of 100 samples" in sentence for sentence in spec.rehearsed)


def test_a_plan_names_a_large_share_of_shifts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path))
    planned = measured_plan(spec_of("test", {"corrupted": {"kinds": [kind for kind in KINDS if kind != "frost"]}}))
    assert 0.3 < planned.shifted_share < 1 and not (tmp_path / "shared").exists()
    assert (
        f"{planned.shifted_share:.0%} of the estimated time is for corrupted"
        in dict(planned.lines())["evaluation splits"]
    )
    assert measured_plan(spec_of("test")).shifted_share == 0

"""The splits that an evaluation names, the data set's own and others, and the objectives that trials must measure."""

from pathlib import Path
from typing import Any

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.costs import measured_plan
from sweeper.planning.preparation import prepare_dataset
from sweeper.results.leaderboard import Goal
from sweeper.space.loading import build_spec, load_spec, reopened_spec
from tests.sweeper.space.test_strata import SPACE, refused
from trainables.datasets import DataSet, load_dataset
from trainables.datasets.base import DATASETS, DataSetComponent
from trainables.datasets.splits.corrupted import KINDS
from trainables.registry import SPLITS

VALUES = {
    "dataset": "digits",
    "scheduler": {"name": "none", "max_epochs": 1},
    "space": {"loss": "cross_entropy", "architecture": "mlp", "optimizer": "sgd"},
}


def _shifted(missing: bool = False) -> DataSet:
    data = load_dataset("digits")
    return (
        data
        if missing
        else DataSet(
            data.name, data.train, data.val, data.test, 10, data.input_shape, "", further={"shifted": data.test}
        )
    )


@pytest.fixture
def shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    component = DataSetComponent("shifted_digits", _shifted, splits=(*SPLITS, "shifted"))
    monkeypatch.setitem(DATASETS._components, "shifted_digits", component)


def _faults(*splits: Any, **evaluation: Any) -> str:
    with pytest.raises(InvalidSearchSpace) as raised:
        build_spec({**VALUES, "evaluation": {"splits": [*splits], **evaluation}})
    return str(raised.value)


def test_unknown_and_repeated_splits_are_named_when_a_file_is_read() -> None:
    found = _faults("val", "tset", "val", trajectory={"splits": ["trian"]})
    assert "evaluation.splits[1]" in found and "no split 'tset'" in found and "did you mean 'test'?" in found
    assert "evaluation.splits[2]" in found and "'val' is named twice" in found
    assert "evaluation.trajectory.splits[0]" in found and "did you mean 'train'?" in found


def test_val_is_measured_whether_it_is_named_or_not() -> None:
    assert build_spec({**VALUES, "evaluation": {"splits": ["test"]}}).evaluation.splits == ["val", "test"]


@pytest.mark.usefixtures("shifted")
def test_a_data_set_names_its_further_splits_and_must_have_them() -> None:
    values = {**VALUES, "dataset": "shifted_digits", "evaluation": {"splits": ["val", "test", "shifted"]}}
    spec = build_spec(values)
    assert list(prepare_dataset(spec).splits) == [*SPLITS, "shifted"]
    DATASETS._components["shifted_digits"] = DataSetComponent(
        "shifted_digits", lambda: _shifted(missing=True), splits=(*SPLITS, "shifted")
    )
    with pytest.raises(InvalidSearchSpace, match=r"evaluation\.splits\[2\]: the data set has no split 'shifted'"):
        prepare_dataset(spec)


def test_a_data_set_of_ones_own_is_checked_when_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_digits.py").write_text(
        "from dataclasses import replace\nfrom trainables.datasets import load_dataset\n\n\n"
        "def digits():\n    data = load_dataset('digits')\n    return replace(data, further={'rotated': data.test})\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    values = {**VALUES, "dataset": "own_digits:digits", "evaluation": {"splits": ["val", "rotatd"]}}
    with pytest.raises(InvalidSearchSpace, match="did you mean 'rotated'"):
        prepare_dataset(build_spec(values))
    assert "rotated" in prepare_dataset(build_spec({**values, "evaluation": {"splits": ["val", "rotated"]}})).splits


STAND_IN = {"name": "digits_stand_in", "train_samples": 160, "test_samples": 16, "validation_samples": 16}
SMALL = {**VALUES["space"], "architecture": {"name": "mlp", "width": 8}}


def spec_of(*splits: Any, **more: Any):
    """Return a sweep that measures these splits of small data."""
    evaluation = {"splits": [*splits], "curvature": False, "bootstrap": 0}
    return build_spec({**VALUES, "dataset": STAND_IN, "space": SMALL, **more, "evaluation": evaluation})


def test_shifts_are_written_out_and_read_again() -> None:
    spec = spec_of("test", {"corrupted": {"kinds": ["fog"], "severities": [1, 3]}}, {"other": {"dataset": "svhn"}})
    assert spec.evaluation.own_splits == ["val", "test"]
    fog, svhn = spec.evaluation.shifts
    assert fog == {"name": "corrupted", "kinds": ["fog"], "severities": [1, 3], "logits": False}
    assert svhn["dataset"]["name"] == "svhn" and svhn["dataset"]["augment"] is True and not svhn["same_classes"]
    again = reopened_spec(spec.resolved(), "sweep.yaml")
    assert again.evaluation == spec.evaluation and again.resolved() == spec.resolved()


def test_all_faults_are_told_at_once_with_the_nearest_name() -> None:
    found = _faults(
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
    assert "kinds = ['fgo'] must be different ones of" in _faults({"corrupted": {"kinds": ["fgo"]}})
    assert "must be a mapping of options" in _faults({"corrupted": "fog"})


def test_a_split_is_measured_once_and_detection_needs_the_test_split() -> None:
    fog = {"corrupted": {"kinds": ["fog"], "severities": [1]}}
    assert "corrupted_fog_1 is measured twice" in _faults("test", fog, fog)
    two = ({"other": {"dataset": "svhn"}}, {"other": {"dataset": "svhn", "split": "train", "label": "seen"}})
    assert "compared with the test split, which is not measured" in _faults("val", two[0])
    assert len(spec_of("test", *two).evaluation.shifts) == 2


def test_other_data_are_looked_at_before_anything_is_trained() -> None:
    spec = spec_of("test", {"corrupted": {"kinds": ["fog"]}}, {"other": {"dataset": "digits"}})
    with pytest.raises(InvalidSearchSpace, match=r"evaluation\.splits\[3\]: digits: its inputs are float32"):
        prepare_dataset(spec)
    with pytest.raises(InvalidSearchSpace, match=r"evaluation\.splits\[2\]: digits cannot be corrupted"):
        prepare_dataset(spec_of("test", {"corrupted": {"kinds": ["fog"]}}, dataset="digits"))


def test_a_plan_names_a_large_share_of_shifts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path))
    planned = measured_plan(spec_of("test", {"corrupted": {"kinds": [kind for kind in KINDS if kind != "frost"]}}))
    assert 0.3 < planned.shifted_share < 1 and not (tmp_path / "shared").exists()
    assert (
        f"{planned.shifted_share:.0%} of the estimated time is for corrupted"
        in dict(planned.lines())["evaluation splits"]
    )
    assert measured_plan(spec_of("test")).shifted_share == 0


POSTHOC = "evaluation={posthoc: [temperature, focal_temperature]}"


@pytest.mark.parametrize(
    "metric", ["val_refinement_nll", "val_refinement_brier", "val_calibration_nll", "val_calibration_brier"]
)
def test_refinement_and_calibration_are_measured_anyway(metric):
    assert load_spec(SPACE, [f"objective.metric={metric}"]).cross_fitted == []


def test_a_post_hoc_metric_is_cross_fitted_and_no_other_method_is():
    spec = load_spec(SPACE, ["objective.metric=val_posthoc_focal_temperature_ece", POSTHOC])
    assert spec.cross_fitted == ["focal_temperature"]
    goal = Goal(spec.objective.metric, "min")
    assert (goal.split, goal.column) == ("val", "cross_fitted_focal_temperature_ece")


@pytest.mark.parametrize(("written", "mode"), [({}, "max"), ({"mode": "min"}, "min")])
def test_one_objective_is_optimised_as_its_metric_says_unless_the_file_does(written, mode):
    spec = load_spec({**SPACE, "objective": {"metric": "val_accuracy", **written}})
    assert spec.objective.mode == load_spec(spec.resolved()).objective.mode == mode


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["objective.metric=val_posthoc_temperature_ece"], "needs the post-hoc method temperature, which"),
        (["objective.metric=val_posthoc_temprature_ece", POSTHOC], "did you mean 'val_posthoc_temperature_ece'"),
        (["objective.metric=val_refinment_nll"], "did you mean 'val_refinement_nll'"),
        (["objective.metric=hessian_training_trace", "evaluation.curvature=false"], "is not measured"),
        (["objective.metric=hessian_training_trace", "evaluation.curvature.losses=[cross_entropy]"], "is not measured"),
        (["replicates={packing: trials}", "scheduler.variant=promotion"], "packing: trials stops and starts"),
        (["scheduler.variant=promotions"], "did you mean 'promotion'"),
    ],
)
def test_objectives_that_are_not_measured_and_schedulers_that_cannot_pause_are_refused(overrides, sentence):
    assert sentence in refused(*overrides)


def test_of_one_method_twice_the_one_whose_label_is_named_is_cross_fitted():
    twice = "evaluation={posthoc: [temperature, {name: temperature, label: by_ece, objective: ece}]}"
    spec = load_spec(SPACE, ["objective.metric=val_posthoc_by_ece_ece", twice])
    assert spec.cross_fitted == ["by_ece"]
    assert load_spec(SPACE, ["objective.metric=val_posthoc_temperature_ece", twice]).cross_fitted == ["temperature"]


def test_without_test_data_the_methods_fitted_on_validation_data_are_cross_fitted():
    measured = "evaluation={splits: [val], posthoc: [temperature, {name: vector, fitted_on: train}, isotonic]}"
    assert load_spec(SPACE, [measured]).cross_fitted == ["temperature", "isotonic"]

"""The splits that an evaluation asks for: named by the data set, checked before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.loading import build_spec, load_spec
from trainables.datasets import DataSet, load_dataset
from trainables.datasets.base import DATASETS, DataSetComponent
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
    component = DataSetComponent("shifted_digits", _shifted, splits=(*SPLITS, "shifted"), stand_in={"size": 8})
    monkeypatch.setitem(DATASETS._components, "shifted_digits", component)


def _faults(**evaluation: Any) -> str:
    with pytest.raises(InvalidSearchSpace) as raised:
        build_spec({**VALUES, "evaluation": evaluation})
    return str(raised.value)


def test_unknown_and_repeated_splits_are_named_when_a_file_is_read() -> None:
    found = _faults(splits=["val", "tset", "val"], trajectory={"splits": ["trian"]})
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


@pytest.mark.usefixtures("shifted")
def test_a_rehearsal_leaves_out_what_its_stand_in_lacks() -> None:
    values = {**VALUES, "dataset": "shifted_digits", "evaluation": {"splits": ["val", "test", "shifted"]}}
    spec = load_spec(values, rehearse=True)
    assert spec.evaluation.splits == ["val", "test"]
    assert "nothing is measured on shifted, which the stand-in lacks" in spec.rehearsed


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

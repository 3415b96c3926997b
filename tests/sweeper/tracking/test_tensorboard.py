"""Event files against the journal, as TensorBoard itself reads them; and which tracker an address means."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, trial_name
from sweeper.journal.journal import read_journal
from sweeper.journal.state import fold
from sweeper.tracking.choice import checked, tracker_for
from sweeper.tracking.follower import Follower
from sweeper.tracking.sync import answer, sync
from sweeper.tracking.tensorboard import ENDED
from tests.mlflow_stores import by_column, expected_points
from tests.patience import patient
from tests.sweeper.tracking.test_sync import drive, with_tables


def assert_complete(sweep: Any, folder: Path) -> None:
    """Compare every scalar and hyperparameter with the journal's."""
    records = list(read_journal(sweep.paths.journal))
    state = fold(records, sweep.count)
    points = expected_points(records)
    for index, metrics in points.items():
        run = EventAccumulator(str(folder / trial_name(index)), size_guidance={"scalars": 0}).Reload()
        keys = by_column(run.Tags()["scalars"])
        assert keys.keys() == metrics.keys()
        for name, expected in metrics.items():
            found = {(e.step, round(e.wall_time * 1000)): e.value for e in run.Scalars(keys[name])}
            assert len(run.Scalars(keys[name])) == len(found) == len(expected)
            for step, timestamp, value in expected:
                if value != -1.0:
                    assert found[step, timestamp] == pytest.approx(value, rel=1e-6, abs=1e-9)
        data = run.summary_metadata
        start = HParamsPluginData.FromString(data["_hparams_/session_start_info"].plugin_data.content)
        loss = sweep.configurations[index]["loss"]
        found = start.session_start_info.hparams
        assert found["config_loss_name"].string_value == loss["name"]
        assert found["config_optimizer_lr"].number_value == sweep.configurations[index]["optimizer"]["lr"]
        assert ("config_loss_gamma" in found) == ("gamma" in loss)
        status = state.trials[index].status
        if status in ENDED:
            end = HParamsPluginData.FromString(data["_hparams_/session_end_info"].plugin_data.content)
            assert end.session_end_info.status == ENDED[status]


def test_event_files_equal_the_journal_after_every_sync(random_sweep: Any) -> None:
    sweep = random_sweep(1, name="scalars", count=4)
    while len(sweep.ended) < sweep.count:
        drive(sweep, steps=5)
        report = sync(sweep.root, "tensorboard:")
        assert_complete(sweep, sweep.root / "tensorboard")
    assert "TensorBoard is complete" in str(report)


def test_the_sweeps_own_run_has_the_answer_and_each_point_once_also_under_a_new_name(random_sweep: Any) -> None:
    sweep = with_tables(random_sweep(1, name="named", count=2))
    sync(sweep.root, "tensorboard:")
    moved = sweep.root.rename(sweep.root.with_name("renamed"))
    for _ in range(2):
        sync(moved, "tensorboard:")
    assert {folder.name for folder in (moved / "tensorboard").iterdir()} == {"c00000", "c00001", "renamed"}
    run = EventAccumulator(str(moved / "tensorboard" / "renamed")).Reload()
    assert {"trials_completed", "recommended/val_nll", "recommended/test_ece"} <= {*run.Tags()["scalars"]}
    assert all(len(run.Scalars(key)) == 1 for key in run.Tags()["scalars"])
    assert run.summary_metadata["answer"].plugin_data.plugin_name == "text"
    assert [event.tensor_proto.string_val[0].decode() for event in run.Tensors("answer")] == [answer(moved)[0]]


def test_a_folder_elsewhere_has_each_sweep_once_whatever_its_name(random_sweep: Any, tmp_path: Path) -> None:
    sweeps = [random_sweep(number, name=f"{place}/same", count=2) for number, place in ((1, "a"), (1, "b"))]
    for sweep in sweeps:
        drive(sweep)
        sync(sweep.root, f"tensorboard:{tmp_path / 'runs'}")
    before = {folder.name for folder in (tmp_path / "runs").iterdir()}
    assert len(before) == 2
    sweeps[0].paths = SweepPaths(sweeps[0].root.rename(tmp_path / "a" / "renamed"))
    sync(sweeps[0].paths.root, f"tensorboard:{tmp_path / 'runs'}")
    (new,) = {folder.name for folder in (tmp_path / "runs").iterdir()} - before
    assert new.startswith("renamed-") and len([*(tmp_path / "runs").iterdir()]) == 2
    assert_complete(sweeps[0], tmp_path / "runs" / new)


@pytest.mark.integration
def test_the_follower_fills_a_folder_elsewhere(random_sweep: Any, tmp_path: Path) -> None:
    sweep = random_sweep(2, name="elsewhere", count=3)
    with Follower(sweep.paths, f"tensorboard:{tmp_path / 'runs'}") as follower:
        drive(sweep)
        assert follower.wait(patient(60)) == []
    (folder,) = (tmp_path / "runs").iterdir()
    assert_complete(sweep, folder)


def test_an_address_that_nobody_serves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SweeperError, match=r"gopher:// is not an MLflow tracking store"):
        checked("gopher://x")
    with pytest.raises(SweeperError, match="beside the sweep, which is in a store"):
        tracker_for("s3://bucket/sweeps", "tensorboard:")
    assert tracker_for("s3://bucket/sweeps", "tensorboard:/mnt/runs") == "tensorboard:/mnt/runs"
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(SweeperError, match="TensorBoard is not installed"):
        checked("tensorboard:")

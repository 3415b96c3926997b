"""Which tracker a sweep has: what its manifest keeps, and what later commands make of it."""

import json
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.tracking.choice import kept_tracker, manifest_entry, mlflow_of, tracker_for, tracker_of
from tests.running import in_process, write_space

SECRET = "postgresql://ann:hunter2@db/runs"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def started(tmp_path: Path, tracker: str | None) -> SweepPaths:
    """A folder whose manifest has what a sweep with this tracker keeps."""
    paths = SweepPaths(tmp_path / "results" / "first")
    paths.root.mkdir(parents=True)
    paths.manifest.write_text(json.dumps(manifest_entry(tracker, paths.root.parent)))
    return paths


@pytest.mark.parametrize("address", [None, "tensorboard:", "http://mlflow:5000", "sqlite:////m.db"])
def test_the_tracker_is_kept(tmp_path: Path, address: str | None) -> None:
    assert kept_tracker(started(tmp_path, address)) == address


def test_the_default_moves_with_its_folder(tmp_path: Path) -> None:
    paths = started(tmp_path, tracker_for(str(tmp_path / "results")))
    paths.root.parent.rename(tmp_path / "moved")
    assert kept_tracker(SweepPaths(tmp_path / "moved" / "first")) == f"sqlite:///{tmp_path}/moved/mlflow.db"


def test_no_secret_is_kept_and_the_variable_can_repeat_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = started(tmp_path, SECRET)
    assert "hunter2" not in paths.manifest.read_text()
    with pytest.raises(SweeperError) as refused:
        kept_tracker(paths)
    assert "hunter2" not in str(refused.value) and refused.value.exit_code == 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://ann:hunter2@another/runs")
    with pytest.raises(SweeperError):
        kept_tracker(paths)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", SECRET)
    assert kept_tracker(paths) == SECRET


def test_sync_without_a_tracker_of_the_sweep_uses_that_of_new_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = started(tmp_path, None)
    assert tracker_of(paths) == f"sqlite:///{tmp_path}/results/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert tracker_of(paths) == mlflow_of(paths) == "http://mlflow:5000"
    assert tracker_of(paths, "tensorboard:") == "tensorboard:"


def test_paths_of_a_tracker_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tracker_for("results", "sqlite:///m.db") == f"sqlite:///{tmp_path}/m.db"
    assert tracker_for("results", "tensorboard:runs") == f"tensorboard:{tmp_path}/runs"


def test_a_run_and_an_import_keep_what_they_were_started_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = []
    monkeypatch.setattr("sweeper.execution.runner.drive", lambda sweep, *rest: manifests.append(sweep.paths.manifest))
    (tmp_path / "p.csv").write_text("y_true,prob_0,prob_1\n" + "0,.7,.3\n1,.4,.6\n" * 40)
    for command in (("run", write_space(tmp_path)), ("import", "p.csv")):
        for given in (["--no-mlflow"], [], ["--tracking-uri", "tensorboard:"]):
            with pytest.raises((AttributeError, TypeError)):  # there is no outcome
                in_process(*command, *given, cwd=tmp_path)
    kept = [json.loads(file.read_text())["tracker"] for file in manifests]
    assert kept == ["none", "default", "tensorboard:"] * 2

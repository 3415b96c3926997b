"""One sweep, one experiment: under any name, in any folder, beside other sweeps of its name and somebody's own."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient

from sweeper.core.ids import SweepPaths
from sweeper.journal.segments import sweep_id
from sweeper.tracking.mlflow.experiment import find_experiment
from sweeper.tracking.mlflow.pages import experiments
from sweeper.tracking.sync import sync
from tests.sweeper.random_sweep import RandomSweep
from tests.sweeper.records import made_body


def begun(root: Path) -> SweepPaths:
    """A sweep with one trial."""
    root.parent.mkdir(parents=True, exist_ok=True)
    sweep = RandomSweep(root, 1, count=2)
    sweep.write_spec()
    journal = sweep.journal()
    journal.append(made_body("attempt", {"attempt": 1}))
    journal.append(made_body("started", {"configuration": 0, "attempt": 1}))
    return sweep.paths


def runs_of(uri: str, paths: SweepPaths) -> dict[str, str]:
    """Run → name of all runs of the sweep's experiment, deleted ones included."""
    client = MlflowClient(uri)
    experiment = find_experiment(client, paths)
    runs = client.search_runs([experiment.experiment_id], run_view_type=ViewType.ALL)
    assert {run.data.tags["sweep_id"] for run in runs} == {sweep_id(paths.journal)}
    return {run.info.run_id: run.info.run_name for run in runs}


def test_sweeps_of_one_name_in_several_folders_share_no_experiment(tmp_path: Path, uri: str) -> None:
    MlflowClient(uri).create_experiment("quickstart")  # somebody's own
    sweeps = [begun(tmp_path / output / "results" / "quickstart") for output in ("a", "b")]
    more = begun(tmp_path / "c" / "b" / "results" / "quickstart")
    for paths in (*sweeps, more) * 2:
        sync(paths.root, uri)
    expected = {f"quickstart ({Path('a/results')})", f"quickstart ({Path('b/results')})"}
    expected.add(f"quickstart ({sweep_id(more.journal)})")
    assert {name for name, _ in experiments(uri, "quickstart")} == expected
    assert [len(runs_of(uri, paths)) for paths in (*sweeps, more)] == [2, 2, 2]


@pytest.mark.parametrize("target", ["new/first", "results/renamed"])
def test_a_renamed_or_moved_sweep_keeps_its_runs_and_nothing_is_written_twice(
    tmp_path: Path, uri: str, target: str
) -> None:
    paths = begun(tmp_path / "results" / "first")
    sync(paths.root, uri)
    before = runs_of(uri, paths)
    moved = tmp_path / target
    moved.parent.mkdir(exist_ok=True)
    paths.root.rename(moved)
    assert sync(moved, uri).points == 0
    assert (
        runs_of(uri, SweepPaths(moved)).keys() == before.keys()
        and moved.name in runs_of(uri, SweepPaths(moved)).values()
    )
    assert [name for name, _ in experiments(uri)] == [moved.name]
    tags = [run.data.tags["sweep"] for run in MlflowClient(uri).search_runs([experiments(uri)[0][1]])]
    assert tags == [moved.name] * 2


def test_a_copy_has_runs_of_its_own(tmp_path: Path, uri: str) -> None:
    paths = begun(tmp_path / "first")
    sync(paths.root, uri)
    shutil.copytree(paths.root, tmp_path / "copy")
    sync(tmp_path / "copy", uri)
    sync(paths.root, uri)
    assert {name for name, _ in experiments(uri)} == {"first", "copy"}
    assert not {*runs_of(uri, paths)} & {*runs_of(uri, SweepPaths(tmp_path / "copy"))}


def test_a_sweep_in_place_of_a_deleted_one_uses_its_experiment(tmp_path: Path, uri: str) -> None:
    first = begun(tmp_path / "first")
    sync(first.root, uri)
    client = MlflowClient(uri)
    client.delete_experiment(find_experiment(client, first).experiment_id)
    shutil.rmtree(first.root)
    second: Any = RandomSweep(tmp_path / "first", 1, count=2, time=1.8e9)
    second.write_spec()
    second.journal().append(made_body("attempt", {"attempt": 1, "host": "another"}))
    sync(second.paths.root, uri)
    (experiment,) = experiments(uri)
    assert experiment[0] == "first"
    own = client.search_runs([experiment[1]], f"tags.sweep_id = '{sweep_id(second.paths.journal)}'")
    assert len(own) == 1

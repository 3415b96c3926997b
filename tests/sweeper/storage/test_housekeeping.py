"""Listing, deleting, renaming and archiving results folders."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.results import load
from sweeper.storage import housekeeping
from sweeper.storage.lease import Lease
from sweeper.storage.lookup import sweep_names


@pytest.fixture
def output(quickstart_folder: Path, tmp_path: Path) -> Path:
    """A folder with one finished sweep."""
    shutil.copytree(quickstart_folder, tmp_path / "results" / "quickstart", symlinks=True)
    return tmp_path / "results"


def test_entries_have_name_time_data_and_size(output: Path) -> None:
    (entry,) = housekeeping.entries(output)
    files = [path for path in (output / "quickstart").rglob("*") if path.is_file() and not path.is_symlink()]
    assert (entry.name, entry.began, entry.dataset, entry.running) == (
        "quickstart",
        "2025-06-01 12:00",
        "digits",
        False,
    )
    assert entry.size >= sum(path.stat().st_size for path in files)
    assert housekeeping.entries(output / "nothing") == []


def test_a_deleted_sweep_is_gone_and_its_neighbours_stay(output: Path) -> None:
    shutil.copytree(output / "quickstart", output / "other", symlinks=True)
    assert housekeeping.delete("quickstart", output) > 0
    assert sweep_names(output) == ["other"] and sorted(path.name for path in output.iterdir()) == ["other"]


def test_a_renamed_sweep_reads_as_before_under_its_new_name(output: Path) -> None:
    before = load("quickstart", output).table("trials")
    housekeeping.rename("quickstart", "kept", output)
    assert sweep_names(output) == ["kept"] and load("kept", output).table("trials") == before
    with pytest.raises(SweeperError, match="not a valid sweep name"):
        housekeeping.rename("kept", "a/b", output)
    (output / "taken").mkdir()
    with pytest.raises(SweeperError, match="'taken' is taken"):
        housekeeping.rename("kept", "taken", output)


def test_an_archive_unpacks_to_the_same_sweep(output: Path, tmp_path: Path) -> None:
    file = housekeeping.archive("quickstart", output, None)
    assert file == output / "quickstart.tar.gz"
    with tarfile.open(file) as packed:
        packed.extractall(tmp_path / "elsewhere", filter="tar")
    assert load("quickstart", tmp_path / "elsewhere").table("trials") == load("quickstart", output).table("trials")
    with pytest.raises(SweeperError, match="already exists"):
        housekeeping.archive("quickstart", output, None)


def test_a_sweep_that_runs_or_is_in_a_store_is_left_alone(output: Path) -> None:
    with Lease(SweepPaths(output / "quickstart").lease), pytest.raises(SweeperError, match="is driven by process"):
        housekeeping.delete("quickstart", output)
    with pytest.raises(SweeperError, match="object store"):
        housekeeping.rename("s3://bucket/sweeps/a", "b", output)
    with pytest.raises(SweeperError, match="there is no sweep 'nothing'"):
        housekeeping.delete("nothing", output)
    assert sweep_names(output) == ["quickstart"]

"""Listing, deleting, renaming and archiving results folders."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import Journal
from sweeper.results import load
from sweeper.storage import housekeeping
from sweeper.storage.lease import Lease
from sweeper.storage.lookup import sweep_names
from tests.sweeper.records import made_body


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


def _project(folder: Path) -> None:
    """A user's own folder, which happens to have names in it that sweeps have."""
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "prices.csv").write_text("1,2\n")
    (folder / "sweep.yaml").write_text("dataset: digits\n")
    (folder / "thesis.tex").write_text("years of work")


@pytest.mark.parametrize("without", ["", "sweep.yaml", "tables"])
def test_a_folder_that_is_no_sweep_is_neither_deleted_nor_renamed_nor_listed(output: Path, without: str) -> None:
    _project(output / "thesis")
    if without:
        path = output / "thesis" / without
        path.unlink() if path.is_file() else shutil.rmtree(path)
    for change in (
        lambda: housekeeping.delete("thesis", output),
        lambda: housekeeping.rename("thesis", "gone", output),
        lambda: housekeeping.archive("thesis", output, None),
    ):
        with pytest.raises(SweeperError, match=r"thesis' is not a sweep: .*\n.*left as it is"):
            change()
    assert (output / "thesis" / "thesis.tex").read_text() == "years of work"
    assert [entry.name for entry in housekeeping.entries(output)] == ["quickstart"]


def test_a_journal_with_other_files_in_it_is_no_sweeps(output: Path) -> None:
    _project(output / "diary")
    (output / "diary" / "journal").mkdir()
    (output / "diary" / "journal" / "monday.txt").write_text("…")
    with pytest.raises(SweeperError, match="its journal has a file 'monday"):
        housekeeping.delete("diary", output)


def test_a_sweep_with_a_damaged_manifest_is_known_by_its_journal(output: Path) -> None:
    paths = SweepPaths(output / "quickstart")
    paths.manifest.write_text("{")
    with pytest.raises(SweeperError, match="is not a sweep"):
        housekeeping.delete("quickstart", output)
    Journal(paths.journal).append(made_body("attempt", {"attempt": 1}))
    assert [entry.name for entry in housekeeping.entries(output)] == ["quickstart"]
    assert housekeeping.delete("quickstart", output) > 0


def test_what_lies_outside_of_the_output_folder_is_left_alone(output: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other" / "kept"
    shutil.copytree(output / "quickstart", elsewhere, symlinks=True)
    (output / "link").symlink_to(elsewhere)
    for name in ("../other/kept", str(elsewhere), "results/../../other/kept", f"{output}/../other/kept"):
        with pytest.raises(SweeperError, match=r"does not lie directly in|there is no sweep"):
            housekeeping.delete(name, output)
    with pytest.raises(SweeperError, match="link' is not a sweep: it is a link"):
        housekeeping.rename("link", "moved", output)
    for name in (".", "..", ""):
        with pytest.raises(SweeperError):
            housekeeping.delete(name, output)
    assert load("kept", elsewhere.parent).table("trials") and (output / "link").is_symlink()
    assert [entry.name for entry in housekeeping.entries(output)] == ["quickstart"]
    assert housekeeping.delete(str(elsewhere), elsewhere.parent) > 0, "its path says where it is"


def test_a_dangling_link_takes_a_name_too(output: Path) -> None:
    (output / "taken").symlink_to(output / "nowhere")
    with pytest.raises(SweeperError, match="'taken' is taken"):
        housekeeping.rename("quickstart", "taken", output)


def test_a_sweep_that_runs_or_is_in_a_store_is_left_alone(output: Path) -> None:
    with Lease(SweepPaths(output / "quickstart").lease), pytest.raises(SweeperError, match="is driven by process"):
        housekeeping.delete("quickstart", output)
    with pytest.raises(SweeperError, match="object store"):
        housekeeping.rename("s3://bucket/sweeps/a", "b", output)
    with pytest.raises(SweeperError, match="there is no sweep 'nothing'"):
        housekeeping.delete("nothing", output)
    assert sweep_names(output) == ["quickstart"]

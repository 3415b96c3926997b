"""What a sweep is, which one is the latest, and how one is found: one answer, whoever asks."""

import json
import os
import shutil
import signal
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sweeper import results
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import resume_sweep
from sweeper.journal.journal import Journal
from sweeper.reporting.status import status_of
from sweeper.results import load
from sweeper.results.recalibrating import recalibrate_sweep
from sweeper.storage import lookup
from sweeper.storage.lease import Lease
from sweeper.storage.lookup import UnknownSweepError, find_sweep, is_sweep, refuse_odd_files, sweep_names
from sweeper.storage.metadata import FORMAT
from sweeper.storage.places import DRIVING, READING, place_of
from sweeper.storage.store_journal import INDEX
from sweeper.storage.sweeps import open_sweep
from sweeper.tracking.sync import Projection
from tests.running import completions, typed
from tests.sweeper.journal.test_state import Script
from tests.sweeper.records import made_body
from tests.sweeper.reporting.test_status import Driven
from tests.sweeper.synthetic_sweep import write_sweep
from trainables.files.atomic import creating


def write(folder: Path, created: str | None, age: float = 0.0) -> Path:
    """Write a folder that looks like a sweep; `age` sets its files' times."""
    folder.mkdir(parents=True)
    (folder / "sweep.yaml").write_text("samples: 1")
    (folder / "manifest.json").write_text(json.dumps({} if created is None else {"created": created}))
    for path in (folder / "sweep.yaml", folder / "manifest.json", folder):
        os.utime(path, (age, age))
    return folder


def completed(output: Path) -> list[str]:
    return completions("status", "--output", str(output), "")


def test_the_latest_is_the_one_that_began_last_and_else_the_files_time_tells(tmp_path: Path) -> None:
    begun = {"b": "2026-11-02T00:00:00+00:00", "c": "2026-11-03T00:30:00+02:00", "a": "2026-11-01"}
    dated, undated, equal = (tmp_path / name for name in ("dated", "undated", "equal"))
    for age, name in enumerate(("c", "a", "b")):
        write(dated / name, begun[name])
        write(undated / name, None, 100 + age)
        write(equal / name, "2026-11-01T00:00:00+00:00", 100 + age)
    (undated / "a" / "manifest.json").write_text("{ damaged")
    (undated / "c" / "manifest.json").unlink()
    assert sweep_names(dated) == results.sweep_names(dated) == ["c", "b", "a"]
    assert sweep_names(undated) == sweep_names(equal) == ["b", "a", "c"]
    assert sweep_names(tmp_path / "none") == sweep_names(dated / "a" / "sweep.yaml") == []


@pytest.mark.parametrize("touched", ["", "sweep.yaml", "manifest.json", "report.html"])
def test_what_happens_to_its_folder_makes_no_sweep_younger(tmp_path: Path, touched: str) -> None:
    """A report changes the folder, `resume --set` changes `sweep.yaml`; each of them once counted as a beginning."""
    old, _ = write(tmp_path / "old", "2026-11-01T00:00:00+00:00", 1), write(tmp_path / "new", "2026-11-02", 2)
    (old / touched).touch()
    os.utime(old)
    assert sweep_names(tmp_path) == ["new", "old"]


def test_tables_alone_are_a_sweep_to_everyone(tmp_path: Path) -> None:
    write_sweep(tmp_path / "whole", configurations=2, failures=0, samples=60)
    bare = write_sweep(tmp_path / "bare", configurations=2, failures=0, samples=60)
    for name in ("sweep.yaml", "manifest.json"):
        (bare / name).unlink()
    (tmp_path / "file-store").mkdir()
    (tmp_path / "mlflow.db").touch()
    assert sorted(sweep_names(tmp_path)) == completed(tmp_path) == ["bare", "whole"]
    assert is_sweep(bare) and find_sweep("bare", tmp_path).root == results.load("bare", tmp_path).folder == bare
    shutil.rmtree(tmp_path / "whole")
    where = ["--output", str(tmp_path)]
    for command in (
        ["results", "bare"],
        ["report", "bare"],
        ["cluster", "logs", "bare"],
        ["status", "bare"],
        ["status"],
    ):
        done = typed(*command, *where)
        assert done.returncode == 0, (command, done.stderr)
        assert command[0] != "status" or "tables only" in done.stdout
    with pytest.raises(SweeperError, match=r"has no sweep\.yaml: only its tables can be read"):
        Projection(bare, "sqlite:///unused")


def test_one_is_found_by_name_and_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, deep = write(tmp_path / "results" / "small", None), write(tmp_path / "results" / "group" / "deep", None)
    write(tmp_path / "small", None)
    monkeypatch.chdir(tmp_path)
    for name in ("small", str(here), "results/small", here):
        assert find_sweep(name, "results").root == results.load(name).folder == here
    for name in ("group/deep", "results/group/deep"):
        assert find_sweep(name, "results").root == results.load(name).folder == deep
    monkeypatch.chdir(here)
    assert find_sweep(".", "results").root == here


def test_one_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "small", None)
    for find in (find_sweep, results.load):
        with pytest.raises(UnknownSweepError, match="did you mean 'small'"):
            find("smal", tmp_path)
        with pytest.raises(UnknownSweepError):
            find("any", tmp_path / "empty")


@pytest.mark.parametrize("name", ["x" * 300, "ä" * 200, "circle", "nul\0name"])
def test_names_that_no_file_system_takes_are_of_no_sweep(tmp_path: Path, name: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    write(tmp_path / "small", None)
    with pytest.raises(UnknownSweepError, match="there is no sweep"):
        find_sweep(name, tmp_path)
    assert sweep_names(tmp_path) == ["small"]
    for use in (DRIVING, READING):
        with pytest.raises(SweeperError, match="cannot be a folder"):
            place_of(tmp_path / name, use)
    for command in (["status", "small"], ["results", "small"], ["report", "small"]):
        done = typed(*command, "--output", str(tmp_path / name))
        assert done.returncode == 2, (command, done.stderr)


LINKS = {
    "incoming": ("generations/incoming", True),
    "a table of incoming": ("generations/incoming/predictions", True),
    "a trial's checkpoints": ("checkpoints/c00003", True),
    "all checkpoints": ("checkpoints", True),
    "a log": ("sweeper.log", False),
    "the lease": ("driver.json", False),
    "the mark that stops": ("stop", False),
    "recalibrations": ("recalibrations", True),
    "a file that is not there": ("mlflow.log", None),
}


@pytest.mark.parametrize("which", LINKS)
def test_nothing_is_written_into_a_folder_whose_links_lead_elsewhere(tmp_path: Path, which: str) -> None:
    root = Driven(tmp_path).paths.root.rename(tmp_path / "results" / "received")
    place, is_folder = LINKS[which]
    elsewhere = tmp_path / "elsewhere"
    if is_folder:
        elsewhere.mkdir()
        (elsewhere / "kept.txt").write_text("mine")
    elif is_folder is False:
        elsewhere.write_text("mine")
    link = root / place
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(elsewhere)
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in tmp_path.rglob("*"))
    options = RunOptions(tmp_path / "results")
    with pytest.raises(SweeperError, match=r"is a link to .*elsewhere, and sweeps have no such link"):
        resume_sweep("received", options)
    with pytest.raises(SweeperError, match=r"is a link to .*elsewhere, and sweeps have no such link"):
        recalibrate_sweep("received", tmp_path / "results", ["temperature"], [], [], [], lambda name: nullcontext())
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


PIPES = ("stop", "mlflow.lock", "journal/x", "generations/incoming/spectra/c.parquet")


@pytest.mark.parametrize(
    ("place", "make", "said"),
    [
        *((place, os.mkfifo, "neither file nor folder") for place in PIPES),
        ("mlflow.lock", os.mkdir, "is not a file"),
        ("driver.json", os.mkdir, "is not a file"),
        ("data", os.mknod, "is not a folder"),
    ],
)
def test_a_folder_has_no_pipe_and_no_folder_for_a_file(tmp_path: Path, place: str, make: Any, said: str) -> None:
    paths = Driven(tmp_path).paths
    odd = paths.root / place
    odd.parent.mkdir(parents=True, exist_ok=True)
    odd.unlink(missing_ok=True)
    make(odd)
    with pytest.raises(SweeperError, match=f"{place} {said}|{place} is {said}"):
        refuse_odd_files(paths)


def test_a_sweeps_own_links_are_no_others(quickstart_folder: Path, tmp_path: Path) -> None:
    refuse_odd_files(SweepPaths(quickstart_folder))
    root = tmp_path / "received"
    shutil.copytree(quickstart_folder, root, symlinks=True)
    (root / "tables").unlink()
    for target in ("/etc", "generations", "../other/generations/0001", "generations/../journal", "journal"):
        (root / "tables").symlink_to(target)
        with pytest.raises(SweeperError, match="sweeps have no such link"):
            refuse_odd_files(SweepPaths(root))
        (root / "tables").unlink()


@pytest.mark.parametrize(
    ("place", "own"),
    [("wandb/offline-run-1-a/logs/debug-core.log", True), ("wandb/run-1-a/logs/debug-core.log", True),
     ("wandb/latest-run", False), ("wandb/run-1-a/files", False), ("logs/debug-core.log", False), ("wandb", False)],
)  # fmt: skip
def test_of_a_trackers_links_only_the_one_that_nothing_opens_is_allowed(tmp_path: Path, place: str, own: bool) -> None:
    link = tmp_path / place
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("/elsewhere")
    with nullcontext() if own else pytest.raises(SweeperError, match="sweeps have no such link"):
        refuse_odd_files(SweepPaths(tmp_path))


@pytest.fixture
def output(quickstart_folder: Path, tmp_path: Path) -> Path:
    """A folder with one finished sweep."""
    shutil.copytree(quickstart_folder, tmp_path / "results" / "quickstart", symlinks=True)
    return tmp_path / "results"


def test_a_deleted_sweep_is_gone_and_its_neighbours_stay(output: Path) -> None:
    shutil.copytree(output / "quickstart", output / "other", symlinks=True)
    assert lookup.delete("quickstart", output) > 0
    assert sweep_names(output) == ["other"] and sorted(path.name for path in output.iterdir()) == ["other"]


def test_a_renamed_sweep_reads_as_before_under_its_new_name(output: Path) -> None:
    before = load("quickstart", output).table("trials")
    lookup.rename("quickstart", "kept", output)
    assert sweep_names(output) == ["kept"] and load("kept", output).table("trials") == before
    with pytest.raises(SweeperError, match="not a valid sweep name"):
        lookup.rename("kept", "a/b", output)
    (output / "taken").symlink_to(output / "nowhere")
    with pytest.raises(SweeperError, match="'taken' is taken"):
        lookup.rename("kept", "taken", output)


def test_an_archive_unpacks_to_the_same_sweep(output: Path, tmp_path: Path) -> None:
    for number, target in enumerate(("/var/log/wandb", "../../..", "../wandb/0")):  # W&B's own; the last stays inside
        (output / "quickstart" / "wandb").mkdir(exist_ok=True)
        (output / "quickstart" / "wandb" / str(number)).symlink_to(target)
    file = lookup.archive("quickstart", output, None)
    assert file == output / "quickstart.tar.gz"
    with tarfile.open(file) as packed:
        packed.extractall(tmp_path / "elsewhere", filter="data")
    assert [link.name for link in (tmp_path / "elsewhere/quickstart/wandb").iterdir()] == ["2"]
    assert load("quickstart", tmp_path / "elsewhere").table("trials") == load("quickstart", output).table("trials")
    with pytest.raises(SweeperError, match="already exists"):
        lookup.archive("quickstart", output, None)


def test_a_file_of_holes_is_not_packed(output: Path) -> None:
    log = output / "quickstart" / "sweeper.log"
    log.touch()
    os.truncate(log, 2**40)
    with pytest.raises(SweeperError, match=r"sweeper\.log claims 1,099,511,627,776 bytes"):
        lookup.archive("quickstart", output, None)
    assert not (output / "quickstart.tar.gz").exists()


def test_a_killed_archive_leaves_nothing(output: Path) -> None:
    child = os.fork()
    if not child:
        with creating(output / "quickstart.tar.gz") as file:
            file.write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert [path.name for path in output.iterdir()] == ["quickstart"]


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
        lambda: lookup.delete("thesis", output),
        lambda: lookup.rename("thesis", "gone", output),
        lambda: lookup.archive("thesis", output, None),
    ):
        with pytest.raises(SweeperError, match=r"thesis' is not a sweep: .*\n.*left as it is"):
            change()
    assert (output / "thesis" / "thesis.tex").read_text() == "years of work"
    assert [entry.name for entry in lookup.entries(output)] == ["quickstart"]


def test_a_sweep_with_a_damaged_manifest_is_known_by_its_journal(output: Path) -> None:
    paths = SweepPaths(output / "quickstart")
    paths.manifest.write_text("{")
    with pytest.raises(SweeperError, match="is not a sweep"):
        lookup.delete("quickstart", output)
    Journal(paths.journal).append(made_body("attempt", {"attempt": 1}))
    assert [entry.name for entry in lookup.entries(output)] == ["quickstart"]
    assert lookup.delete("quickstart", output) > 0


def test_what_lies_outside_of_the_output_folder_is_left_alone(output: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other" / "kept"
    shutil.copytree(output / "quickstart", elsewhere, symlinks=True)
    (output / "link").symlink_to(elsewhere)
    for name in ("../other/kept", str(elsewhere), "results/../../other/kept", f"{output}/../other/kept"):
        with pytest.raises(SweeperError, match=r"does not lie directly in|there is no sweep"):
            lookup.delete(name, output)
    with pytest.raises(SweeperError, match="link' is not a sweep: it is a link"):
        lookup.rename("link", "moved", output)
    for name in (".", "..", ""):
        with pytest.raises(SweeperError):
            lookup.delete(name, output)
    assert load("kept", elsewhere.parent).table("trials") and (output / "link").is_symlink()
    assert [entry.name for entry in lookup.entries(output)] == ["quickstart"]
    assert lookup.delete(str(elsewhere), elsewhere.parent) > 0, "its path says where it is"


def test_a_sweep_that_runs_or_is_in_a_store_is_left_alone(output: Path) -> None:
    with Lease(SweepPaths(output / "quickstart").lease), pytest.raises(SweeperError, match="is driven by process"):
        lookup.delete("quickstart", output)
    with pytest.raises(SweeperError, match="object store"):
        lookup.rename("s3://bucket/sweeps/a", "b", output)
    with pytest.raises(SweeperError, match="there is no sweep 'nothing'"):
        lookup.delete("nothing", output)
    assert sweep_names(output) == ["quickstart"]


def test_a_copy_from_a_store_is_a_sweep_and_a_journal_with_other_files_is_none(tmp_path: Path) -> None:
    driven = Driven(tmp_path)
    driven.write(Script().attempt(1))
    root = driven.paths.root
    (root / "journal" / INDEX).write_text("{}")
    assert [entry.name for entry in lookup.entries(tmp_path / "results")] == ["small"]
    (root / "journal" / "notes.txt").write_text("mine")
    assert lookup.entries(tmp_path / "results") == []
    with pytest.raises(SweeperError, match=r"its journal has a file 'notes\.txt'"):
        lookup.delete("small", tmp_path / "results")


@pytest.mark.parametrize("number", [None, FORMAT - 1, FORMAT + 1])
def test_a_folder_of_another_format_names_the_version(tmp_path: Path, number: int | None) -> None:
    root = write_sweep(tmp_path / "results" / "old", configurations=2, samples=20)
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["versions"]["calibration-sweeper"] = "0.3.0"
    manifest = {key: value for key, value in {**manifest, "format": number}.items() if value is not None}
    (root / "manifest.json").write_text(json.dumps(manifest))
    for refused in (lambda: load("old", root.parent), lambda: open_sweep("old", root.parent)):
        with pytest.raises(SweeperError, match=rf"written by version 0\.3\.0, and this version reads format {FORMAT}"):
            refused()
    (status,) = status_of(root.parent)
    assert "written by version 0.3.0" in status.state

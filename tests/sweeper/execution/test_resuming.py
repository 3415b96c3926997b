"""A resume with nothing to do, one whose journal is damaged or lost, and what a driver says of repeatability."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.execution.options import RunOptions, Settled, mark_settled, settled
from sweeper.execution.resuming import begun_trials, refuse_lost_journal, repeatability_notes
from sweeper.execution.runner import resume_sweep
from sweeper.journal.state import COMPLETED, SweepState
from sweeper.storage.lease import Lease
from sweeper.storage.lookup import find_sweep
from sweeper.storage.sweeps import open_sweep
from tests.running import in_process
from tests.sweeper.inline_sweep import Inline

COUNTS = {"completed": 3, "failed": 1}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder with the sweep `small`, which has ended."""
    inline = Inline(tmp_path_factory.mktemp("finished"))
    inline.run("small")
    return inline.output


@pytest.fixture
def ended_paths(ended: Path, tmp_path: Path) -> SweepPaths:
    """A copy to lose parts of."""
    shutil.copytree(ended, tmp_path / "results", symlinks=True)
    return find_sweep("small", tmp_path / "results")


@pytest.fixture
def paths(ended_paths: SweepPaths) -> SweepPaths:
    """A copy with its report and its mark."""
    ended_paths.report.write_text("a report")
    mark_settled(ended_paths, COUNTS, None, retriable=1)
    return ended_paths


def look(paths: SweepPaths, *, failed_too: bool = False, tracker: str | None = None) -> Settled | None:
    return settled(paths.name, paths.root.parent, failed_too=failed_too, tracker=tracker)


def first(folder: Path) -> Path:
    return min(path for path in folder.iterdir() if path.is_file())


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    os.utime(path, ns=(0, 0))
    path.write_bytes(content)


def publish_again(paths: SweepPaths) -> None:
    shutil.copytree(paths.tables.resolve(), paths.generations / "0009", symlinks=True)
    paths.tables.unlink()
    paths.tables.symlink_to("generations/0009")


def test_it_is_known_with_its_counts(paths: SweepPaths) -> None:
    found = look(paths)
    assert found is not None and found.counts == COUNTS and found.paths.root == paths.root


@pytest.mark.parametrize(
    "change",
    [
        lambda paths: damage(first(paths.journal)),
        lambda paths: first(paths.journal).unlink(),
        lambda paths: (paths.journal / "0000009999-attempt.json").touch(),
        lambda paths: (paths.journal / ".tmp-1-00000000").touch(),
        lambda paths: first(paths.tables / "predictions").unlink(),
        lambda paths: damage(first(paths.tables / "epochs")),
        lambda paths: damage(paths.sweep_file),
        lambda paths: damage(paths.manifest),
        lambda paths: paths.extensions.touch(),
        lambda paths: paths.report.unlink(),
        lambda paths: paths.tables.unlink(),
        lambda paths: shutil.rmtree(paths.journal),
        lambda paths: (paths.generations / "settled.json").write_text("[]"),
        publish_again,
    ],
)
def test_whatever_has_changed_makes_the_mark_void(paths: SweepPaths, change: Callable[[SweepPaths], object]) -> None:
    change(paths)
    assert look(paths) is None


def test_what_it_does_not_speak_of_changes_nothing(paths: SweepPaths) -> None:
    paths.report.write_text("written again")
    (paths.tables / "recalibrations" / "another.parquet").touch()
    paths.log.touch()
    assert look(paths) is not None


def test_failed_trials_and_another_store_are_something_to_do(paths: SweepPaths, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert look(paths, failed_too=True) is None
    assert look(paths, tracker=store) is None, "it was not logged"
    mark_settled(paths, COUNTS, store)
    assert look(paths) is not None and look(paths, tracker=store) is None, "the store is gone"
    (tmp_path / "mlflow.db").touch()
    assert look(paths, tracker=store) is not None
    assert "mlflow.db" not in (paths.generations / "settled.json").read_text(), "an address may hold a password"


def test_a_resume_looks_at_nothing_else(paths: SweepPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("it was opened")

    monkeypatch.setattr("sweeper.execution.runner.resume_sweep", refused)
    monkeypatch.setattr("sweeper.journal.records.Record.from_bytes", refused)
    done = in_process("resume", "small", "--no-mlflow", cwd=tmp_path)
    assert done.returncode == 1, "one trial has failed"
    assert "sweeper resume small --failed" in done.stdout
    for option in (["--failed"], ["--discard-damaged"], ["--set", "retries=3"]):
        with pytest.raises(AssertionError, match="it was opened"):
            in_process("resume", "small", "--no-mlflow", *option, cwd=tmp_path)


@pytest.mark.parametrize("lost", ["folder", "records", "folder and link"])
def test_a_lost_journal_is_missed_and_nothing_is_run(ended_paths: SweepPaths, lost: str) -> None:
    shutil.rmtree(ended_paths.journal)
    if lost == "records":
        ended_paths.journal.mkdir()
    if lost == "folder and link":
        ended_paths.tables.unlink()
    before = sorted(ended_paths.root.rglob("*"))
    with pytest.raises(SweeperError, match=r"results in its tables, and no journal(.|\n)*backup(.|\n)*sweeper run"):
        resume_sweep("small", RunOptions(ended_paths.root.parent, executor="ray"))
    assert sorted(ended_paths.root.rglob("*")) == before


def test_checkpoints_alone_tell_of_a_lost_journal(ended_paths: SweepPaths) -> None:
    for folder in (ended_paths.journal, ended_paths.generations):
        shutil.rmtree(folder)
    ended_paths.tables.unlink()
    refuse_lost_journal(ended_paths)
    ended_paths.trial_checkpoints(3).mkdir(parents=True)
    (ended_paths.trial_checkpoints(3) / "e00001.pt").touch()
    with pytest.raises(SweeperError, match="has checkpoints, and no journal"):
        refuse_lost_journal(ended_paths)


def test_a_sweep_that_has_not_begun_or_whose_records_are_quarantined_is_none(ended_paths: SweepPaths) -> None:
    refuse_lost_journal(ended_paths)
    for record in ended_paths.journal.iterdir():
        record.rename(f"{record}.damaged")
    refuse_lost_journal(ended_paths)


@pytest.mark.integration
def test_limits_of_a_sweep_that_another_drives_stay_as_they_are(ended_paths: SweepPaths) -> None:
    before = ended_paths.sweep_file.read_bytes()
    options = RunOptions(ended_paths.root.parent, executor="local", cpus=1, settings=["max_concurrent=3"])
    with Lease(ended_paths.lease), pytest.raises(SweeperError, match="already being driven"):
        resume_sweep("small", options)
    assert ended_paths.sweep_file.read_bytes() == before
    resume_sweep("small", options)
    assert open_sweep("small", ended_paths.root.parent).spec.max_concurrent == 3


@pytest.mark.parametrize(
    ("given", "tracked"), [([], False), (["--tracking-uri", "sqlite:///m.db"], True), (["--no-mlflow"], False)]
)
def test_what_was_started_without_mlflow_stays_without_until_one_is_named(
    ended_paths: SweepPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], tracked: bool
) -> None:
    found = []
    monkeypatch.setattr("sweeper.execution.runner.resume_sweep", lambda name, options, server: found.append(options))
    manifest = json.loads(ended_paths.manifest.read_text())
    for untracked in (False, True):
        ended_paths.manifest.write_text(json.dumps({**manifest, **({"untracked": True} if untracked else {})}))
        with suppress(AttributeError):  # there is no outcome to tell of
            in_process("resume", "small", "--set", "retries=3", *given, cwd=tmp_path)
    before, after = found
    assert (before.tracker is not None) == ("--no-mlflow" not in given)
    assert (after.tracker is not None) == tracked


def test_a_damaged_manifest_is_refused_before_anything_is_run(ended_paths: SweepPaths) -> None:
    ended_paths.manifest.write_text("{ damaged")
    before = sorted(ended_paths.root.rglob("*"))
    with pytest.raises(SweeperError, match=r"manifest\.json is damaged"):
        resume_sweep("small", RunOptions(ended_paths.root.parent, executor="ray"))
    assert sorted(ended_paths.root.rglob("*")) == before


def _state(device: str) -> SweepState:
    """Four trials: two finished, one begun, one waiting."""
    state = SweepState(4)
    for index, (epochs, status) in enumerate([(9, COMPLETED), (9, COMPLETED), (4, "interrupted")]):
        trial = state.trials[index]
        trial.device, trial.epochs, trial.status = device, epochs, status
    return state


def test_what_a_driver_continues_are_the_trials_that_have_reported_and_not_ended() -> None:
    assert begun_trials(_state("cuda")) == {2}


def test_continued_trials_are_told_on_a_gpu() -> None:
    state = _state("cuda")
    (note,) = repeatability_notes(state, begun_trials(state), deterministic=False)
    assert note.startswith("1 trial continued on a GPU without training: {deterministic: true}")
    assert "not to the bit" in note


@pytest.mark.parametrize(("device", "deterministic"), [("cpu", False), ("cuda", True), ("cpu", True)])
def test_nothing_is_said_where_bits_repeat(device: str, deterministic: bool) -> None:
    assert repeatability_notes(_state(device), (2,), deterministic=deterministic) == []
    assert repeatability_notes(SweepState(4), (), deterministic=False) == []

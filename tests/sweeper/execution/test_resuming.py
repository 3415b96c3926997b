"""A resume whose journal is damaged or lost."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from sweeper.api.finished import FinishedRun
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.execution.attempt import _report_is_fresh, _report_lacking
from sweeper.execution.options import Outcome, RunOptions
from sweeper.execution.resuming import refuse_lost_journal
from sweeper.execution.runner import resume_sweep
from sweeper.journal.state import COMPLETED, FAILED, SweepState
from sweeper.reporting.live import Timings
from sweeper.storage.lease import Lease
from sweeper.storage.lookup import find_sweep
from sweeper.storage.sweeps import open_sweep
from tests.running import in_process
from tests.sweeper.inline_sweep import Inline
from trainables.worker.trial_reports import CRASH, NON_FINITE, Failure


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
    ("kept", "given", "tracker"),
    [
        ("none", [], None),
        ("none", ["--tracking-uri", "sqlite:////m.db"], "sqlite:////m.db"),
        ("tensorboard:", [], "tensorboard:"),
        ("tensorboard:", ["--no-mlflow"], None),
        ("tensorboard:", ["--tracking-uri", "sqlite:////m.db"], "sqlite:////m.db"),
        ("default", [], "sqlite:///{output}/mlflow.db"),
    ],
)
def test_a_resume_uses_the_sweeps_own_tracker_unless_told_otherwise(
    ended_paths: SweepPaths, monkeypatch: pytest.MonkeyPatch, kept: str, given: list[str], tracker: str | None
) -> None:
    output, options = ended_paths.root.parent, list[RunOptions]()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////another.db")  # the tracker of new sweeps
    monkeypatch.setattr("sweeper.execution.runner.drive", lambda sweep, dataset, given, *rest: options.append(given))
    manifest = json.loads(ended_paths.manifest.read_text())
    ended_paths.manifest.write_text(json.dumps({**manifest, "tracker": kept}))
    with suppress(AttributeError):  # there is no outcome to show
        in_process("resume", "small", *given, cwd=output.parent)
    assert [one.tracker for one in options] == [tracker and tracker.format(output=output)]


def test_a_damaged_manifest_is_refused_before_anything_is_run(ended_paths: SweepPaths) -> None:
    ended_paths.manifest.write_text("{ damaged")
    before = sorted(ended_paths.root.rglob("*"))
    with pytest.raises(SweeperError, match=r"manifest\.json is damaged"):
        resume_sweep("small", RunOptions(ended_paths.root.parent, executor="ray"))
    assert sorted(ended_paths.root.rglob("*")) == before


def test_what_an_interrupted_run_says_of_its_trials(ended_paths: SweepPaths) -> None:
    sweep, state = open_sweep("small", ended_paths.root.parent), SweepState(4)
    for index, kind in enumerate((NON_FINITE, CRASH)):
        state.trials[index].status, state.trials[index].failure = FAILED, Failure(kind)
    state.trials[2].status = COMPLETED
    done = FinishedRun(Outcome(sweep, state, 1.0, "interrupted", []), str(ended_paths.root.parent), Timings())
    assert (done.unfinished, done.retriable, done.complete) == (1, 1, False), "what diverged would diverge again"
    assert (done.counts["failed"], done.counts["completed"], done.counts["waiting"]) == (2, 1, 1)


def test_a_run_without_its_report_does_not_exit_with_0(ended_paths: SweepPaths) -> None:
    sweep = open_sweep("small", ended_paths.root.parent)
    lost = next((sweep.paths.tables / "evaluations").glob("[0-9]*.parquet"))
    lost.unlink()
    (note,) = _report_lacking(sweep)
    assert "evaluations" in note and "sweeper report" in note
    for reported in (True, False):
        outcome = Outcome(sweep, SweepState(4), 1.0, "finished", [], reported)
        assert FinishedRun(outcome, str(ended_paths.root.parent), Timings()).complete is reported


def test_a_report_is_fresh_until_the_journal_or_a_recalibration_changes(ended_paths: SweepPaths) -> None:
    ended_paths.report.unlink(missing_ok=True)
    assert not _report_is_fresh(ended_paths)
    ended_paths.report.write_text("")
    ended_paths.recalibrations.mkdir(exist_ok=True)
    for folder in (ended_paths.journal, ended_paths.recalibrations):
        for path, seconds in ((ended_paths.journal, 1), (ended_paths.recalibrations, 1), (ended_paths.report, 2)):
            os.utime(path, (seconds, seconds))
        assert _report_is_fresh(ended_paths)
        os.utime(folder, (3, 3))
        assert not _report_is_fresh(ended_paths)

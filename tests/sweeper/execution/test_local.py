"""Sweeps carried out by forked processes of this machine."""

import os
import signal
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.execution.driver.steering import ACKNOWLEDGED, HURRIED
from sweeper.execution.local import this_machine
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import resume_sweep, run_sweep
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Failed, Record, Reported
from sweeper.reporting.live import Progress
from sweeper.results import load
from sweeper.storage.metadata import read_manifest
from tests.running import write_space
from trainables.files.container import usable_cores

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, max_epochs: 3, grace_epochs: 1, reduction_factor: 3}
samples: 4
retries: 1
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 5]}}]}
  architecture: {name: mlp, width: 16}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, batch_size: 128}
evaluation: {bins: 15, curvature: false, bootstrap: 0}
"""


def test_the_cores_are_those_that_this_process_may_use():
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
    assert this_machine(3).trials_at_once({"cpu": 1.0, "gpu": 0.0}) == 3
    assert this_machine(None).total("CPU") == usable_cores()


def test_a_sweep_says_what_carried_it_out(tmp_path: Path):
    options = RunOptions(tmp_path / "results", cpus=2)
    outcome = run_sweep(write_space(tmp_path, SPACE), [], "s", options)
    assert outcome.outcome == "finished"
    assert read_manifest(outcome.sweep.paths.manifest)["executor"] == "local"
    assert load(outcome.sweep.paths.root).rows("SELECT count(*) AS n FROM trials WHERE status = 'failed'")[0]["n"] == 0


@pytest.mark.integration
def test_processes_are_ended_where_memory_runs_out(tmp_path: Path, monkeypatch):
    # Of the machine or its container, whichever is nearer its end; long trials, as memory is looked at every .2 s.
    monkeypatch.setattr("sweeper.execution.local.fullest_memory", lambda: (99 * 2**23, 100 * 2**23))
    space = write_space(
        tmp_path, SPACE.replace("max_epochs: 3, grace_epochs: 1", "max_epochs: 3000, grace_epochs: 1000")
    )
    outcome = run_sweep(space, [], "s", RunOptions(tmp_path / "results", cpus=2))
    failed = load(outcome.sweep.paths.root).rows("SELECT stop_kind, error FROM trials WHERE status = 'failed'")
    assert failed and {row["stop_kind"] for row in failed} == {"out_of_memory"}
    assert all("memory" in row["error"] for row in failed)


@pytest.mark.integration
def test_trials_that_hold_little_memory_wait_until_others_give_it_back(tmp_path: Path, monkeypatch):
    journal = SweepPaths(tmp_path / "results" / "s").journal

    def memory() -> tuple[int, int]:
        """Another process holds 990 of 1,000 GiB until five trials were ended for it."""
        records = read_journal(journal) if journal.is_dir() else ()
        ended = sum(isinstance(record.body, Failed) for record in records)
        return (990 if ended < 5 else 90) * 2**30, 1000 * 2**30

    monkeypatch.setattr("sweeper.execution.local.fullest_memory", memory)
    monkeypatch.setattr("sweeper.execution.driver.judging.SHORTEST_PAUSE", 0.1)
    space = write_space(tmp_path, SPACE.replace("max_epochs: 3", "max_epochs: 60"))
    outcome = run_sweep(space, [], "s", RunOptions(tmp_path / "results", cpus=2))
    assert outcome.outcome == "finished" and not outcome.state.count()["failed"]
    failures = [r.body for r in read_journal(outcome.sweep.paths.journal) if isinstance(r.body, Failed)]
    assert len(failures) > 4 and {body.failure.counts for body in failures} == {False}  # retries: 1, and four trials


@pytest.mark.integration
def test_after_ctrl_c_trials_finish_their_epoch_and_the_sweep_can_be_resumed(tmp_path: Path):
    said: list[str] = []

    class Pressed(Progress):
        """Presses Ctrl-C once at the first report."""

        def append(self, record: Record) -> None:
            if isinstance(record.body, Reported) and not said:
                os.kill(os.getpid(), signal.SIGINT)

        def say(self, text: str) -> None:
            said.append(text)

    settings = ["samples=40", "scheduler.max_epochs=9"]
    options = RunOptions(tmp_path / "results", cpus=1, progress=Pressed)
    outcome = run_sweep(write_space(tmp_path, SPACE), settings, "s", options)
    assert said[0] == ACKNOWLEDGED
    assert outcome.outcome == "interrupted" and len(outcome.state.unfinished()) > 0
    assert not outcome.state.count()["failed"]
    assert outcome.sweep.paths.report.is_file()
    reported = sum(trial.epochs for trial in outcome.state.trials.values())
    again = resume_sweep("s", RunOptions(tmp_path / "results", cpus=2))
    assert again.outcome == "finished" and not again.state.count()["failed"]
    assert sum(trial.epochs for trial in again.state.trials.values()) > reported


@pytest.mark.integration
def test_a_second_ctrl_c_skips_tables_and_report(tmp_path: Path):
    said: list[str] = []

    class PressedTwice(Progress):
        """Presses Ctrl-C twice at the first report."""

        def append(self, record: Record) -> None:
            if isinstance(record.body, Reported) and not said:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

        def say(self, text: str) -> None:
            said.append(text)

    options = RunOptions(tmp_path / "results", cpus=1, progress=PressedTwice)
    outcome = run_sweep(write_space(tmp_path, SPACE), ["samples=40"], "s", options)
    assert said[:2] == [ACKNOWLEDGED, HURRIED] and outcome.outcome == "interrupted"
    assert any("tables and report were skipped" in note for note in outcome.notes)
    assert not outcome.sweep.paths.report.exists()
    assert resume_sweep("s", RunOptions(tmp_path / "results", cpus=2)).outcome == "finished"

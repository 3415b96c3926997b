"""Sweeps whose trials train together: refilled as trials end, halved where memory ends, resumed, searched, promoted."""

import os
import signal
from pathlib import Path

import pytest

from sweeper.execution.local import THRESHOLD_VARIABLE
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import resume_sweep, run_sweep
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Failed, Record, Reported
from sweeper.reporting.live import Progress
from sweeper.results import load
from sweeper.scheduling.base import audit
from tests.running import write_space

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, max_epochs: 3, grace_epochs: 1, reduction_factor: 3}
samples: 12
replicates: {count: 1, packing: lanes, lanes: 4}
retries: 0
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 5]}}]}
  architecture: {choice: [{name: mlp, width: 16}, {name: mlp, width: 8}]}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, batch_size: 128}
evaluation: {bins: 15, curvature: false, bootstrap: 0}
"""


def _run(tmp_path: Path, *settings: str, **options: object):
    chosen = RunOptions(tmp_path / "results", cpus=2, **options)
    outcome = run_sweep(write_space(tmp_path, SPACE), settings, "s", chosen)
    records = list(read_journal(outcome.sweep.paths.journal))
    assert audit(outcome.sweep.spec.schedule, records)[1] == []
    return outcome, records


def _packings(outcome) -> dict[str, int]:
    rows = load(outcome.sweep.paths.root).rows("SELECT packing, count(*) AS n FROM trials GROUP BY packing")
    return {str(row["packing"]): row["n"] for row in rows}


def test_every_trial_of_a_cohort_is_judged_as_a_trial(tmp_path: Path) -> None:
    outcome, _ = _run(tmp_path)
    assert outcome.outcome == "finished" and not outcome.state.count()["failed"]
    assert outcome.state.count()["completed"] + outcome.state.count()["early_stopped"] == 12
    assert _packings(outcome) == {"lanes": 12}


@pytest.mark.integration
def test_promoted_and_searched_trials_join_cohorts(tmp_path: Path) -> None:
    outcome, records = _run(tmp_path, "scheduler.variant=promotion", "searcher.name=optuna", "replicates.count=2")
    assert outcome.outcome == "finished" and not outcome.state.count()["failed"]
    assert any(record.kind == "judged" for record in records), "some were promoted, or stopped at the end"


@pytest.mark.slow
def test_memory_that_runs_out_halves_cohorts_and_costs_no_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    class Scarce(Progress):
        """Memory is scarce until four trials have been ended for it."""

        def append(self, record: Record) -> None:
            if isinstance(record.body, Failed):
                ended.append(record.body)
            if len(ended) >= 4:
                monkeypatch.setenv(THRESHOLD_VARIABLE, "1.1")

    monkeypatch.setenv(THRESHOLD_VARIABLE, "0.0001")
    outcome, _ = _run(tmp_path, "samples=8", "retries=2", progress=Scarce)
    assert outcome.outcome == "finished" and not outcome.state.count()["failed"]
    shared = [body.failure for body in ended if "shared_with" in body.failure.values]
    assert shared and all(failure.kind == "out_of_memory" and not failure.counts for failure in shared)


@pytest.mark.integration
def test_after_ctrl_c_every_lane_reports_its_epoch_and_the_sweep_can_be_resumed(tmp_path: Path) -> None:
    pressed = []

    class Pressed(Progress):
        """Presses Ctrl-C once, at the first report."""

        def append(self, record: Record) -> None:
            if isinstance(record.body, Reported) and not pressed:
                pressed.append(os.kill(os.getpid(), signal.SIGINT))

    outcome, _ = _run(tmp_path, "scheduler.max_epochs=9", progress=Pressed)
    assert outcome.outcome == "interrupted" and outcome.state.unfinished() and not outcome.state.count()["failed"]
    reported = sum(trial.epochs for trial in outcome.state.trials.values())
    again = resume_sweep("s", RunOptions(tmp_path / "results", cpus=2))
    assert again.outcome == "finished" and not again.state.count()["failed"]
    assert sum(trial.epochs for trial in again.state.trials.values()) > reported


@pytest.mark.integration
def test_what_cannot_be_a_lane_trains_alone_beside_cohorts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def plain(logits, targets):\n    return (logits.softmax(1)[range(len(targets)), targets] - 1).square()\n"
    )
    text = SPACE.replace("[{name: cross_entropy},", "[{name: 'mine:plain'},")
    outcome = run_sweep(write_space(tmp_path, text), ["samples=6"], "s", RunOptions(tmp_path / "results", cpus=2))
    assert outcome.outcome == "finished" and not outcome.state.count()["failed"]
    packings = _packings(outcome)
    assert packings.keys() == {"lanes", "sequential"}
    assert any("mine:plain" in note for note in outcome.notes)

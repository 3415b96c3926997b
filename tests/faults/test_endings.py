"""A trial that takes too long or whose loss is not finite ends as failed, with kind and sentence."""

import itertools
import math
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths, replicate_seed, trial_name
from sweeper.results import load
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from tests.faults.reference import SMALL
from tests.running import in_process, write_space
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_space(tmp_path_factory.mktemp("space"), SMALL % {"samples": 6})


def test_a_trial_that_takes_too_long_has_its_time_again_when_resumed(space: Path, tmp_path: Path) -> None:
    spec = load_spec(space)
    settings = TrialSettings(
        dataset=spec.dataset,
        max_epochs=9,
        rungs=tuple(spec.schedule.rungs),
        objective="val_nll",
        evaluation=spec.evaluation.settings,
        checkpoints=tmp_path,
        timeout_seconds=25.0,
    )
    dataset = settings.load_dataset()
    assignment = Assignment(0, trial_name(0), configurations(spec)[0], [replicate_seed(spec.seed, 0, 0)])

    def ticking(seconds: float) -> itertools.count:
        return itertools.count(0.0, seconds)

    trial, clock = Trial(assignment, settings, dataset), ticking(5.0)
    reports = [trial.advance(clock.__next__).to_dict()]
    while "failure" not in reports[-1]:
        reports.append(trial.advance(clock.__next__).to_dict())
    last = reports[-1]
    assert last["failure"]["kind"] == "timed_out" and last["failure"]["values"]["trial_timeout"] == 25
    assert math.isnan(last["objective"]) and 1 < last["epoch"] < 9
    again = Trial(assignment, settings, dataset)
    assert again.advance().epoch == reports[-2]["epoch"], "it repeats the last sound report"
    assert not again.advance(ticking(0.1).__next__).failure


def test_a_loss_that_is_not_finite_ends_a_trial_at_once(space: Path, tmp_path: Path) -> None:
    overrides = ["--set", "space.optimizer.lr=1.0e+30", "--set", "samples=2", "--set", "scheduler.grace_epochs=3"]
    done = in_process("run", space, "--name", "s", "--no-mlflow", "--cpus", "1", *overrides, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = load(SweepPaths(tmp_path / "results" / "s").root).rows("SELECT * FROM trials")
    for row in rows:
        assert (row["status"], row["stop_kind"]) == ("failed", "non_finite")
        assert row["epochs"] == 1 and "in epoch 1" in row["error"]

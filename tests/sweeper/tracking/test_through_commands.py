"""A sweep with each tracker through the commands that continue, move or read it: nothing refused, lost or doubled."""

import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sweeper.core.ids import SweepPaths, trial_name
from sweeper.journal.journal import read_journal
from sweeper.journal.state import fold
from sweeper.tracking.choice import default_address
from sweeper.tracking.mlflow.pages import experiments
from tests.patience import patient
from tests.running import in_process, kill, started, sweeper, wait_for_records, write_space
from tests.sweeper.tracking.test_wandb import run_of

pytestmark = pytest.mark.integration

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: none, max_epochs: 3}
samples: 2
space:
  loss: {name: focal, gamma: {uniform: [0.5, 5]}}
  architecture: {name: mlp, width: 8}
  optimizer: {name: sgd, lr: 0.1, batch_size: 64}
resources: {cpu: 1}
evaluation: {curvature: false, bootstrap: 0, posthoc: [temperature]}
"""

#: Trial → number of points of the training loss at each epoch, over all runs that the tracker shows.
Points = dict[str, Counter[int]]

METRIC = "train_loss"


def in_mlflow(paths: SweepPaths) -> Points:
    uri = default_address(paths.root.parent)
    client, ((_, experiment),) = MlflowClient(uri), experiments(uri)
    runs = [run for run in client.search_runs([experiment]) if "trial" in run.data.tags]
    histories = [(run, client.get_metric_history(run.info.run_id, METRIC)) for run in runs]
    return merged((run.data.tags["trial"], [point.step for point in points]) for run, points in histories)


def in_tensorboard(paths: SweepPaths) -> Points:
    folders = [EventAccumulator(str(folder)).Reload() for folder in (paths.root / "tensorboard").iterdir()]
    runs = [run for run in folders if METRIC in run.Tags()["scalars"]]
    return merged((Path(run.path).name, [event.step for event in run.Scalars(METRIC)]) for run in runs)


def in_wandb(paths: SweepPaths) -> Points:
    runs = [run_of(file) for file in paths.root.glob("wandb/offline-run-*/*.wandb")]
    steps = [(run, [step for key, step in run["history"] if key == METRIC]) for run in runs]
    return merged((run["config"]["trial"], found) for run, found in steps if found)


def merged(runs: object) -> Points:
    points: Points = {}
    for trial, steps in runs:  # type: ignore[attr-defined]
        points.setdefault(trial, Counter()).update(steps)
    return points


TRACKERS: dict[str, tuple[list[str], Callable[[SweepPaths], Points] | None]] = {
    "MLflow": ([], in_mlflow),
    "TensorBoard": (["--tracking-uri", "tensorboard:"], in_tensorboard),
    "W&B": (["--tracking-uri", "wandb:"], in_wandb),
    "none": (["--no-mlflow"], None),
}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracked_sweep_through_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    given, read = TRACKERS[tracker]

    def command(*words: str) -> None:
        # W&B ends its runs with the process, and its service does not outlive it.
        apart = tracker == "W&B" or words[:2] == ("manage", "sync")
        given_up = time.monotonic() + patient(120)
        done = (sweeper if apart else in_process)(*words, cwd=tmp_path)
        # The process that logs a sweep can outlast the command that waited for it.
        while words[:2] == ("manage", "sync") and done.returncode == 2 and time.monotonic() < given_up:
            time.sleep(2)
            done = sweeper(*words, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)

    def same(paths: SweepPaths) -> None:
        """The tracker has each epoch of each trial and added seed once."""
        if read is None:
            assert {file.name for file in paths.root.parent.iterdir()} <= {paths.name, f"{paths.name}.tar.gz"}
            return
        command("manage", "sync", paths.name)
        state = fold(read_journal(paths.journal), 3)
        seeds = {index: trial.added for index, trial in state.trials.items()}
        names = {index: trial_name(index) if seed is None else f"{trial_name(seed.trial)}-r{seed.replicate}"
                 for index, seed in seeds.items()}  # fmt: skip
        found = read(paths)
        if tracker == "TensorBoard":  # its folders are named after the configuration's index
            names = {index: trial_name(index) for index in names}
        assert found == {name: Counter(range(1, 4)) for name in names.values()}

    first, second = (SweepPaths(tmp_path / "results" / name) for name in ("first", "second"))
    with started("run", write_space(tmp_path, SPACE), "--name", "first", *given, cwd=tmp_path) as driver:
        wait_for_records(first, 4, driver)
        kill(driver)
    command("resume", "first")
    command("resume", "first", "--set", "samples=3")
    command("resume", "first", "--set", "replicates=2")
    same(first)
    command("recalibrate", "first", "--method", "temperature", "--bins", "7")
    same(first)
    command("manage", "rename", "first", "second")
    same(second)
    for words in (["report", "second"], ["results", "second"], ["export", "second", "exported", "--retrain"]):
        command(*words)
    command("manage", "archive", "second")
    command("manage", "delete", "second", "--yes")
    assert not second.root.exists()
    subprocess.run(["tar", "xzf", "second.tar.gz"], cwd=tmp_path / "results", check=True)
    same(second)
    command("resume", "second")
    same(second)

"""A sweep on streamed images that is killed in the midst of its epochs ends as the undisturbed one."""

import os
import signal
from pathlib import Path

import pytest
import torch

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from tests.faults.processes import trial_processes, wait_until
from tests.running import kill, metrics_by_key, reports, same, started, sweeper, write_space
from tests.trainables.stream_files import write_tree

SPACE = """
dataset: {name: streamed_images, folder: FOLDER, image_size: 24, randaugment: 1, workers: 1}
objective: {metric: val_nll, mode: min}
scheduler: {name: none, max_epochs: 2}
replicates: 2
seed: 3
space:
  loss: {name: focal, gamma: {grid: [1, 2]}}
  architecture: {name: resnet8, width: 0.5}
  optimizer: {name: sgd, lr: 0.05, momentum: 0.9, batch_size: 8, ema: 0.9, sharpness: sam}
resources: {cpu: 1}
checkpoint: {every_seconds: 0.3}
evaluation: {posthoc: [temperature], curvature: false, bootstrap: 0}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("victim", ["driver", "trial"])
def test_kills_within_epochs_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str) -> None:
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path / "data"))
    folder = write_tree(tmp_path / "photos", ["a", "b"], 240)
    space = write_space(tmp_path, SPACE.replace("FOLDER", str(folder)))
    options = ("--output", tmp_path / "out", "--cpus", "1", "--executor", "local")
    with started("run", space, *options, "--name", "whole", cwd=tmp_path) as process:
        process.wait(400)
    expected = metrics_by_key(reports(SweepPaths(tmp_path / "out" / "whole")))
    assert len(expected) == 2 * 2 * (2 + 2), "of two trials and replicates, two epochs and two splits"
    paths = SweepPaths(tmp_path / "out" / "killed")
    kills = 0
    with started("run", space, *options, "--name", "killed", cwd=tmp_path) as process:
        if victim == "trial":
            kills += _kill_trials(paths, process.pid, 2)
            process.wait(400)
        else:
            _wait_for_another_partial(paths, 0)
            kill(process)
    if victim == "driver":
        assert _progress(paths), "a checkpoint in the middle of an epoch is what it continues from"
        done = sweeper("resume", "killed", "--output", tmp_path / "out", "--executor", "local", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    found = metrics_by_key(reports(paths))
    assert found.keys() == expected.keys()
    different = [
        key for key in expected if not all(same(found[key][name], expected[key][name]) for name in expected[key])
    ]
    assert different == []
    if victim == "trial":
        assert kills == 2
        failures = [record for record in read_journal(paths.journal) if record.kind == "failed"]
        assert len(failures) == kills


def _partials(paths: SweepPaths) -> list[Path]:
    return [*paths.checkpoints.glob("c*/partial.pt")]


def _progress(paths: SweepPaths) -> list[tuple[int, int]]:
    """Return epoch and batches of each checkpoint in the middle of an epoch."""
    states = [torch.load(path, weights_only=True) for path in _partials(paths)]
    return [(s["epoch"], r["progress"]["batches"]) for s in states for r in s["replicates"] if "progress" in r]


def _wait_for_another_partial(paths: SweepPaths, before: float) -> float:
    def newest() -> float:
        times = []
        for path in _partials(paths):
            try:
                times.append(path.stat().st_mtime)
            except FileNotFoundError:  # its epoch has ended
                continue
        return max(times, default=0.0)

    wait_until(lambda: newest() > before)
    return newest()


def _kill_trials(paths: SweepPaths, driver: int, count: int) -> int:
    before, kills = 0.0, 0
    for _ in range(count):
        before = _wait_for_another_partial(paths, before)
        for pid in trial_processes(driver)[:1]:
            os.kill(pid, signal.SIGKILL)
            kills += 1
    return kills

"""Ray Tune, function API: ASHA, one process a trial."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.benchmarks.peers.plan import Plan, contender
from tests.benchmarks.peers.ray_tuner import kept, tune_plan


def train(config: dict[str, int], folder: str) -> None:
    """Train a configuration and report each epoch."""
    from ray import tune

    from tests.benchmarks.peers.training import Training

    training = Training(Plan.read(Path(folder)), config["index"])
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as saved:
            training.load(Path(saved))
    while not training.finished:
        row = training.step()
        if not training.saves:
            tune.report(row)
            continue
        with tempfile.TemporaryDirectory() as place:
            training.save(Path(place))
            tune.report(row, checkpoint=tune.Checkpoint.from_directory(place))


def run(folder: Path, resume: bool) -> None:
    """Train the plan of a folder."""
    tune_plan(train, folder, resume, reuse_actors=False)


if __name__ == "__main__":
    contender(run, kept)

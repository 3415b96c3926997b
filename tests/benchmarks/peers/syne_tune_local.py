"""Syne Tune: ASHA in its stopping variant on the local backend, one process a trial; results in its CSV file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.plan import METRIC, WORKERS, Kept, Plan, contender

NAME = "sweep"
SLEEP = 0.1
"""Seconds between the tuner's looks at its trials. Its default, 5, suits trials of minutes, not of seconds."""


def train(folder: Path, index: int, saved: Path) -> None:
    """Be a trial's process: train a configuration and report each epoch."""
    from syne_tune import Reporter

    from tests.benchmarks.peers.training import CHECKPOINT, Training

    training, report = Training(Plan.read(folder), index), Reporter()
    if (saved / CHECKPOINT).exists():
        training.load(saved)
    while not training.finished:
        row: Any = training.step()
        if training.saves:
            saved.mkdir(parents=True, exist_ok=True)
            training.save(saved)
        report(**row)


def run(folder: Path, resume: bool) -> None:
    """Train the plan of a folder, or go on from the tuner that was saved last (`Tuner.load`)."""
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.config_space import randint
    from syne_tune.optimizer.baselines import ASHA

    os.environ["SYNETUNE_FOLDER"] = str(folder)
    if resume:
        Tuner.load(str(folder / NAME)).run()
        return
    plan = Plan.read(folder)
    count = len(plan.configurations)
    scheduler = ASHA(
        {"index": randint(0, count - 1), "folder": str(folder)},
        metric=METRIC,
        time_attr="epoch",
        max_t=plan.max_epochs,
        grace_period=plan.rungs[0],
        reduction_factor=plan.reduction_factor,
        random_seed=0,
        points_to_evaluate=[{"index": index} for index in range(count)],
    )
    Tuner(
        trial_backend=LocalBackend(entry_point=__file__),
        scheduler=scheduler,
        stop_criterion=StoppingCriterion(max_num_trials_started=count - 1),  # it stops after one more
        n_workers=WORKERS,
        sleep_time=SLEEP,
        tuner_name=NAME,
        suffix_tuner_name=False,
        wait_trial_completion_when_stopping=True,
    ).run()


def kept(folder: Path) -> Kept:
    """Return the epochs in `results.csv.zip`, which is written with the first result and every ten seconds after."""
    import pandas

    path = folder / NAME / "results.csv.zip"
    if not path.exists():
        return set()
    table = pandas.read_csv(path)
    return {(int(index), int(epoch)) for index, epoch in zip(table["config_index"], table["epoch"], strict=True)}


if __name__ == "__main__":
    if "--index" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path)
        parser.add_argument("--index", type=int)
        parser.add_argument("--st_checkpoint_dir", type=Path)
        options, _ = parser.parse_known_args()
        train(options.folder, options.index, options.st_checkpoint_dir)
    else:
        contender(run, kept)

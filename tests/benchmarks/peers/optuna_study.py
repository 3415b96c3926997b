"""Optuna: successive halving, two processes on one study in SQLite, which keeps each epoch's value."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.plan import METRIC, WORKERS, Kept, Plan, contender

NAME = "sweep"
ENQUEUED = "enqueued"


def study_of(folder: Path) -> Any:
    """Return the folder's study, made where there is none.

    The heartbeat is how a study finds trials whose process was killed, and trains them again:
    https://optuna.readthedocs.io/en/stable/reference/generated/optuna.storages.RDBStorage.html
    """
    import optuna

    plan = Plan.read(folder)
    url = f"sqlite:///{folder / 'study.db'}"
    heartbeat: dict[str, Any] = {}
    if plan.checkpoints:
        retry = optuna.storages.RetryFailedTrialCallback(inherit_intermediate_values=True)
        heartbeat = {"heartbeat_interval": 1, "grace_period": 2, "heartbeat_stale_trial_callback": retry}
    return optuna.create_study(
        study_name=NAME,
        storage=optuna.storages.RDBStorage(url, **heartbeat),
        direction="minimize",
        pruner=optuna.pruners.SuccessiveHalvingPruner(
            min_resource=plan.rungs[0], reduction_factor=plan.reduction_factor
        ),
        load_if_exists=True,
    )


def work(folder: Path) -> None:
    """Train the study's waiting trials until none is left."""
    import optuna

    from tests.benchmarks.peers.training import Training

    plan, study = Plan.read(folder), study_of(folder)
    sys.stdin.readline()

    def objective(trial: optuna.Trial) -> float:
        if ENQUEUED not in trial.user_attrs:
            study.stop()
            raise optuna.TrialPruned("no configuration is left")
        index = trial.suggest_int("index", 0, len(plan.configurations) - 1)
        training, place = Training(plan, index), folder / "checkpoints" / str(index)
        if place.exists():
            training.load(place)
        row: dict[str, float] = {}
        while not training.finished:
            row = training.step()
            trial.report(row[METRIC], int(row["epoch"]))
            if training.saves:
                place.mkdir(parents=True, exist_ok=True)
                training.save(place)
            if trial.should_prune():
                raise optuna.TrialPruned
        return row[METRIC]

    while True:
        try:
            study.optimize(objective)
        except (optuna.exceptions.UpdateFinishedTrialError, ValueError) as error:
            # Two processes can take the same waiting trial from SQLite; the later one may not tell its result, and
            # its process would end there. A user starts it again; what was trained twice counts as spent.
            if isinstance(error, ValueError) and "Cannot tell" not in str(error):
                raise
        else:
            return


def run(folder: Path, resume: bool) -> None:
    """Start the two processes, and enqueue the plan's configurations while they import torch."""
    study = study_of(folder)
    command = [sys.executable, "-m", "tests.benchmarks.peers.optuna_study", "work", str(folder)]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True) for _ in range(WORKERS)]
    for index in () if resume else range(len(Plan.read(folder).configurations)):
        study.enqueue_trial({"index": index}, user_attrs={ENQUEUED: True})
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("begin\n")
        worker.stdin.close()
    codes = [worker.wait() for worker in workers]
    if any(codes):
        raise SystemExit("a worker failed")


def kept(folder: Path) -> Kept:
    """Return the epochs whose values the study holds."""
    if not (folder / "study.db").exists():
        return set()
    trials = [trial for trial in study_of(folder).trials if "index" in trial.params]
    return {(trial.params["index"], epoch) for trial in trials for epoch in trial.intermediate_values}


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(Path(sys.argv[2]))
    else:
        contender(run, kept)

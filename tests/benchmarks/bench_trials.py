"""What a sweep costs a trial: no-op trials through scheduler, journal and tables, beside bare Ray Tune.

Run with `make bench-trials` (10,000 trials; `--trials 500` for a first look). Both use the same trainable, whose steps
return a report of one epoch and, at the end, two evaluations, and train nothing; reused actors; no loggers and no
snapshots of Tune's. Each measurement is a process of its own; Ray's start is not counted, the closing of the tables is.

A sweep is measured with one configuration a Tune trial, as where a scheduler stops trials, with MLflow filled in
afterwards and while the trials run; and with several a Tune trial, as where no trial can be stopped before its last
epoch. Bare Tune runs first and last, and counts with the mean, so that a machine that slows down shows. At the end, a
tenth of the trials with one and with twenty reports each: memory must not grow with reports.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweeper.core.processes import prepare

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, max_epochs: %d, grace_epochs: %d}
samples: %d
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 10]}}]}
  architecture: mlp
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}}
evaluation: {curvature: false, bootstrap: 0}
"""
METRICS = ("accuracy", "nll", "brier", "ece", "ada_ece", "mce", "aurc")
MANY_REPORTS = 20


def report_of(index: int, epoch: int = 1, last: int = 1) -> dict[str, Any]:
    """Return a trial's report of one epoch."""
    value = 1 / (1 + index % 97)
    row = {"replicate": 0, "epoch": epoch, "train_loss": value, "val_nll": value, "val_accuracy": value}
    evaluations = [
        {"replicate": 0, "epoch": epoch, "split": split, "stage": "end", **dict.fromkeys(METRICS, value)}
        for split in ("val", "test")
        if epoch == last
    ]
    return {
        "configuration": index,
        "epoch": epoch,
        "objective": value,
        "device": "cpu",
        "packing": "sequential",
        "wall_seconds": 0.0,
        "epochs": [row],
        "evaluations": evaluations,
    }


def no_op_trainable(last: int) -> type:
    """Return the trainable, which reports `last` epochs. Made here, because importing Ray waits for its environment."""
    from ray import tune

    from trainables.worker.trial_reports import TrialReport, WorkerCommand, WorkerReport

    class NoOp(tune.Trainable):
        def setup(self, config: Mapping[str, Any], settings: Any = None, together: bool = False) -> None:
            self.reset_config(config)

        def direct(self, command: WorkerCommand) -> None:
            """There is nothing to do but the next step."""

        def step(self) -> dict[str, Any]:
            self._epoch += 1
            reports = [TrialReport.from_dict(report_of(index, self._epoch, last)) for index in self._indices]
            over = self._epoch == last
            return {"report": [WorkerReport(((reports, over),))], "done": self._alone and over}

        def reset_config(self, new_config: Mapping[str, Any]) -> bool:
            self._alone, self._epoch = "index" in new_config, 0
            given = [] if self._alone else new_config["assignment"]
            self._indices = [new_config["index"]] if self._alone else [each.configuration for each in given]
            return True

    return NoOp


def bare(trials: int, folder: Path, last: int) -> dict[str, float]:
    """Bare Ray Tune: a grid over indices."""
    from ray import tune

    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(len(os.sched_getaffinity(0)))
    began, processor = time.perf_counter(), time.process_time()
    tune.Tuner(
        tune.with_resources(no_op_trainable(last), {"cpu": 1}),
        param_space={"index": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(reuse_actors=True, trial_dirname_creator=lambda trial: str(trial.trial_id)),
        run_config=tune.RunConfig(
            name="bare",
            storage_path=str(folder),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    ).fit()
    found = {"seconds": time.perf_counter() - began, "processor": time.process_time() - processor}
    return {**found, "peak_mb": peak()}


def peak() -> float:
    """Return the most memory that this process has held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sweep(trials: int, folder: Path, last: int, *, live: bool, together: bool) -> dict[str, float]:
    """The same trials as a sweep, with every sink; `together` puts several into a Tune trial."""
    import sweeper.execution.driver.assignments
    from sweeper.execution.driver.context import DriverSettings
    from sweeper.execution.driver.driver import Driver
    from sweeper.execution.ray.executor import execute
    from sweeper.execution.resuming import open_tables
    from sweeper.journal.journal import Journal
    from sweeper.journal.state import SweepState
    from sweeper.space.loading import load_spec
    from sweeper.storage.mirror import SharedFolder
    from sweeper.storage.sweeps import create_sweep
    from sweeper.tracking.follower import Follower
    from sweeper.tracking.sync import sync
    from trainables.datasets import load_dataset

    space = folder / "no-op.yaml"
    space.write_text(SPACE % (last, last, trials))
    if not together:
        sweeper.execution.driver.assignments.BATCH_LIMIT = 1
    spec = load_spec(space)
    made = create_sweep(spec, "no-op", None, folder / "results", {})
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    cores = len(os.sched_getaffinity(0))
    began, processor = time.perf_counter(), time.process_time()
    tables = open_tables(made, load_dataset("digits"), SharedFolder(made.paths))
    driver = Driver(
        made.paths,
        made.configurations,
        DriverSettings.of(spec, made.configurations),
        journal=Journal(made.paths.journal),
        keeper=SharedFolder(made.paths),
        state=SweepState(trials),
        rungs=spec.schedule.begin(),
        sinks=[tables],
        slots=cores,
    )
    from trainables.training.evaluation import EvaluationSettings
    from trainables.worker.trial_settings import TrialSettings

    settings = TrialSettings({"name": "digits"}, last, (last,), "val_nll", EvaluationSettings())
    with Follower(made.paths, uri if live else None) as follower:
        driver.begin()
        execute(driver, settings, resources={"cpu": 1, "gpu": 0}, pending=cores, trainable=no_op_trainable(last))
        assert driver.finish() == "finished"
        assert not driver.state.count()["failed"], "processes that cannot start would be measured instead"
        tables.close()
        seconds, spent = time.perf_counter() - began, time.process_time() - processor
        most = peak()
        follower.wait(600)
    whole = time.perf_counter() - began
    report = sync(made.paths.root, uri)
    return {"seconds": seconds, "processor": spent, "peak_mb": most, "with_mlflow": whole, "sync": report.seconds}


def child(kind: str, trials: int, last: int) -> None:
    """Measure one thing in this process and print it."""
    prepare(None)
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            if kind == "bare":
                found = bare(trials, path, last)
            else:
                found = sweep(trials, path, last, live=kind == "live", together=kind == "together")
    finally:
        ray.shutdown()
    print("\n" + json.dumps(found))


def measure(kind: str, trials: int, last: int = 1) -> dict[str, float]:
    """Measure one thing in a process of its own."""
    numbers = ["--trials", str(trials), "--reports", str(last)]
    command = [sys.executable, "-m", "tests.benchmarks.bench_trials", "--child", kind, *numbers]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--reports", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.trials, options.reports)
        return
    from sweeper.storage.metadata import hardware

    found = {kind: measure(kind, options.trials) for kind in ("bare", "sweep", "live", "together")}
    found["again"] = measure("bare", options.trials)
    base = {key: (found["bare"][key] + found["again"][key]) / 2 for key in ("seconds", "processor")}
    for kind, label in (
        ("bare", "bare Ray Tune"),
        ("again", "bare Ray Tune once more"),
        ("sweep", "sweep, MLflow afterwards"),
        ("live", "sweep, MLflow live"),
        ("together", "sweep, several together"),
    ):
        values = found[kind]
        times = [f"{values[key]:8.1f} s ({values[key] / base[key] - 1:+.0%})" for key in ("seconds", "processor")]
        print(f"{label:26s} {times[0]}, driver's processor time {times[1]}, peak {values['peak_mb']:.0f} MB")
    print(f"MLflow afterwards: {found['sweep']['sync']:.1f} s; live, complete {found['live']['with_mlflow']:.1f} s")
    fewer = max(1, options.trials // 10)
    for kind, label in (("bare", "bare Ray Tune"), ("sweep", "sweep")):
        few, many = (measure(kind, fewer, reports) for reports in (1, MANY_REPORTS))
        sizes = f"{few['peak_mb']:.0f} MB with one report a trial, {many['peak_mb']:.0f} MB with {MANY_REPORTS}"
        print(f"{label}, {fewer} trials: peak {sizes}; {many['seconds']:.1f} s with {MANY_REPORTS}")
    machine = hardware()
    print(
        f"{options.trials} no-op trials, n = 1; {len(os.sched_getaffinity(0))} cores, {machine['processor']}, "
        f"load average {os.getloadavg()[1]:.1f}"
    )


if __name__ == "__main__":
    main()

"""What a sweep costs a trial: no-op trials through scheduler, journal and tables, beside bare Ray Tune.

Run with `make bench-trials` (10,000 trials; `--trials 500` for a first look). Both use the same trainable, whose one
step returns a report of one epoch and two evaluations and trains nothing; reused actors; no loggers and no snapshots
of Tune's. Each measurement is a process of its own; Ray's start is not counted, the closing of the tables is. MLflow
is filled in afterwards (its own line), and, in a third measurement, while the trials run.
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

from sweeper.ray_environment import prepare

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, max_epochs: 1, grace_epochs: 1}
samples: %d
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 10]}}]}
  architecture: mlp
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}}
evaluation: {curvature: false, bootstrap: 0}
"""
METRICS = ("accuracy", "nll", "brier", "ece", "ada_ece", "mce", "aurc")


def report_of(index: int) -> dict[str, Any]:
    """Return the only report of a trial."""
    value = 1 / (1 + index % 97)
    epoch = {"replicate": 0, "epoch": 1, "train_loss": value, "val_nll": value, "val_accuracy": value}
    evaluations = [
        {"replicate": 0, "epoch": 1, "split": split, "stage": "end", **dict.fromkeys(METRICS, value)}
        for split in ("val", "test")
    ]
    return {
        "configuration": index,
        "epoch": 1,
        "objective": value,
        "failure": None,
        "failure_kind": None,
        "device": "cpu",
        "packing": "sequential",
        "wall_seconds": 0.0,
        "epochs": [epoch],
        "evaluations": evaluations,
    }


def no_op_trainable() -> type:
    """Return the trainable; a function, because importing Ray must wait for its environment."""
    from ray import tune

    class NoOp(tune.Trainable):
        def setup(self, config: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
            self.reset_config(config)

        def step(self) -> dict[str, Any]:
            return {"reports": [report_of(self._index)], "exhausted": True, "done": self._alone}

        def reset_config(self, new_config: Mapping[str, Any]) -> bool:
            self._alone = "index" in new_config
            self._index = new_config["index"] if self._alone else json.loads(new_config["assignment"])[0][0]
            return True

    return NoOp


def bare(trials: int, folder: Path) -> dict[str, float]:
    """Bare Ray Tune: a grid over indices."""
    from ray import tune

    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(len(os.sched_getaffinity(0)))
    began, processor = time.perf_counter(), time.process_time()
    tune.Tuner(
        tune.with_resources(no_op_trainable(), {"cpu": 1}),
        param_space={"index": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(reuse_actors=True, trial_dirname_creator=lambda trial: str(trial.trial_id)),
        run_config=tune.RunConfig(
            name="bare",
            storage_path=str(folder),
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    ).fit()
    return {"seconds": time.perf_counter() - began, "processor": time.process_time() - processor}


def sweep(trials: int, folder: Path, *, live: bool) -> dict[str, float]:
    """The same trials as a sweep, with every sink."""
    import sweeper.executor
    from sweeper.driver import Driver
    from sweeper.journal import Journal
    from sweeper.runner import _open_tables
    from sweeper.scheduler import Rungs
    from sweeper.sinks.follower import MlflowFollower
    from sweeper.sinks.mlflow import sync
    from sweeper.spec import load_spec
    from sweeper.state import SweepState
    from sweeper.sweep import create_sweep

    space = folder / "no-op.yaml"
    space.write_text(SPACE % trials)
    spec = load_spec(space)
    made = create_sweep(spec, "no-op", None, folder / "results", {})
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    sweeper.executor.SweepTrainable = no_op_trainable()  # type: ignore[misc, assignment]
    cores = len(os.sched_getaffinity(0))
    began, processor = time.perf_counter(), time.process_time()
    tables = _open_tables(made, 10)
    driver = Driver(
        made.paths,
        made.configurations,
        seed=0,
        replicates=1,
        halving=spec.halving,
        journal=Journal(made.paths.journal),
        state=SweepState(trials),
        rungs=Rungs(spec.halving),
        sinks=[tables],
        slots=cores,
    )
    with MlflowFollower(made.paths, uri if live else None) as follower:
        driver.begin()
        sweeper.executor.execute(driver, {}, resources={"cpu": 1, "gpu": 0}, pending=cores)
        assert driver.finish() == "finished"
        tables.close()
        seconds, spent = time.perf_counter() - began, time.process_time() - processor
        follower.wait(600)
    whole = time.perf_counter() - began
    report = sync(made.paths.root, uri)
    return {"seconds": seconds, "processor": spent, "with_mlflow": whole, "sync": report.seconds}


def child(kind: str, trials: int) -> None:
    """Measure one thing in this process and print it."""
    prepare(None)
    import ray

    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            found = bare(trials, path) if kind == "bare" else sweep(trials, path, live=kind == "live")
    finally:
        ray.shutdown()
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("\n" + json.dumps(found))


def measure(kind: str, trials: int) -> dict[str, float]:
    """Measure one thing in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.bench_trials", "--child", kind, "--trials", str(trials)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--trials", type=int, default=10_000)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.trials)
        return
    from sweeper.manifest import hardware

    found = {kind: measure(kind, options.trials) for kind in ("bare", "sweep", "live")}
    base = found["bare"]
    for kind, label in (
        ("bare", "bare Ray Tune"),
        ("sweep", "sweep, MLflow afterwards"),
        ("live", "sweep, MLflow live"),
    ):
        values = found[kind]
        times = [f"{values[key]:8.1f} s ({values[key] / base[key] - 1:+.0%})" for key in ("seconds", "processor")]
        print(f"{label:26s} {times[0]}, driver's processor time {times[1]}, peak {values['peak_mb']:.0f} MB")
    print(f"MLflow afterwards: {found['sweep']['sync']:.1f} s; live, complete {found['live']['with_mlflow']:.1f} s")
    machine = hardware()
    print(f"{options.trials} no-op trials, n = 1; {len(os.sched_getaffinity(0))} cores, {machine['processor']}")


if __name__ == "__main__":
    main()

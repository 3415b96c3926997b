"""What Ray Tune's two contenders share: ASHA over the plan's configurations, Ray's default loggers, two cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks.peers.plan import METRIC, WORKERS, Kept, Plan, json_lines

NAME = "sweep"


def tune_plan(trainable: Any, folder: Path, resume: bool, *, reuse_actors: bool) -> None:
    """Train the plan of a folder, or what `Tuner.restore` says is left of it.

    https://docs.ray.io/en/latest/tune/tutorials/tune-fault-tolerance.html
    """
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    plan = Plan.read(folder)
    ray.init(address="local", num_cpus=WORKERS, include_dashboard=False)
    trainable = tune.with_resources(tune.with_parameters(trainable, folder=str(folder)), {"cpu": 1})
    if resume:
        tuner = tune.Tuner.restore(str(folder / NAME), trainable=trainable)
    else:
        scheduler = ASHAScheduler(
            time_attr="epoch",
            metric=METRIC,
            mode="min",
            max_t=plan.max_epochs,
            grace_period=plan.rungs[0],
            reduction_factor=plan.reduction_factor,
        )
        tuner = tune.Tuner(
            trainable,
            param_space={"index": tune.grid_search(list(range(len(plan.configurations))))},
            tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=reuse_actors),
            run_config=tune.RunConfig(name=NAME, storage_path=str(folder)),
        )
    results = tuner.fit()
    if results.num_errors:
        raise SystemExit(f"{results.num_errors} trials failed: {results.errors[0]}")
    ray.shutdown()


def kept(folder: Path) -> Kept:
    """Return the epochs in the trials' `result.json`."""
    found: Kept = set()
    for path in (folder / NAME).glob("*/result.json"):
        for row in json_lines(path.read_text().splitlines()):
            found.add((row["config"]["index"], row["epoch"]))
    return found

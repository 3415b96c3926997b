"""Ray Tune as a stateless executor: it starts processes, carries reports, and asks the driver what to do.

Tune keeps nothing that matters. Its searcher hands out the driver's assignments, its scheduler passes reports
to the driver, its stopper asks whether to go on; `Tuner.restore` is never used. Tune pickles these objects when
a Tuner is made, so they hold a token, and find the driver by it in this process.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sweeper.driver import Driver
from sweeper.failures import Failure, classify

_DRIVERS: dict[str, Driver] = {}

_TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the journal has every result; files a trial would only cost time
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # snapshots of all trials serve `restore`, which is never used
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # reports carry their metrics in a list
    "TUNE_RESULT_BUFFER_LENGTH": "1",  # a decision must reach the trial before its next step
    "RAY_AIR_NEW_OUTPUT": "0",
}


@contextmanager
def ray_session(address: str | None, cpus: int | None) -> Iterator[dict[str, float]]:
    """Connect to a Ray cluster, or start one on this machine, and yield its resources; leave it afterwards.

    Args:
        address: of a running cluster (`auto` for the one this machine belongs to), or `None` to start one.
        cpus: how many cores a started one may use; `None` for all.
    """
    os.environ.update(_TUNE_ENVIRONMENT)
    if address is None:
        # Ray starts local clusters with token authentication and would write a token into the home folder.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    import ray

    if ray.is_initialized():
        yield dict(ray.cluster_resources())
        return
    local: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if address is None else {"address": address}
    ray.init(**local, log_to_driver=False, logging_level="warning")
    try:
        yield dict(ray.cluster_resources())
    finally:
        ray.shutdown()


def execute(
    driver: Driver,
    settings: Mapping[str, Any],
    *,
    resources: Mapping[str, float],
    pending: int,
) -> None:
    """Run the driver's assignments until none is left or a stop is asked for.

    Args:
        driver: decides.
        settings: `trainables.trial.TrialSettings` as plain values, the same for all trials.
        resources: of one trial, e.g. `{"cpu": 1, "gpu": 0.25}`.
        pending: trials kept ready beyond the running ones; an autoscaler sees only these.
    """
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(1, pending))
    from ray import tune

    from trainables.trainable import SweepTrainable

    token = secrets.token_hex(8)
    _DRIVERS[token] = driver
    searcher, scheduler, callback, stopper = _tune_parts(token)
    trainable = tune.with_resources(
        tune.with_parameters(SweepTrainable, settings=dict(settings)), {k: v for k, v in resources.items() if v}
    )
    with tempfile.TemporaryDirectory(prefix="sweeper-tune-") as scratch:
        try:
            tune.Tuner(
                trainable,
                tune_config=tune.TuneConfig(
                    search_alg=searcher, scheduler=scheduler, num_samples=-1, reuse_actors=True
                ),
                run_config=tune.RunConfig(
                    name="sweep",
                    storage_path=scratch,
                    stop=stopper,
                    callbacks=[callback],
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=0),
                ),
            ).fit()
        finally:
            del _DRIVERS[token]


def _tune_parts(token: str) -> tuple[Any, Any, Any, Any]:
    """Return the searcher, scheduler, callback and stopper that pass Tune's questions on to the driver."""
    from ray.tune import Callback, Stopper
    from ray.tune.schedulers import FIFOScheduler, TrialScheduler
    from ray.tune.search import Searcher

    class AssignmentSearcher(Searcher):
        """Suggests the next assignment; waits while a failed one may come back."""

        def suggest(self, trial_id: str) -> Any:
            driver = _DRIVERS[token]
            assignment = driver.next_assignment()
            if assignment is not None:
                return {"assignment": json.dumps(driver.describe(assignment))}
            return Searcher.FINISHED if driver.exhausted else None

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
            """Reports end trials; there is nothing to learn here."""

        def save(self, checkpoint_path: str) -> None:
            """Tune must not keep a state of its own."""

        def restore(self, checkpoint_path: str) -> None:
            """Tune must not keep a state of its own."""

    class ReportingScheduler(FIFOScheduler):
        """Passes each report to the driver, which journals it, and stops the trial when the driver says so."""

        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            reports = result["reports"]
            over = _DRIVERS[token].on_reports(_assignment(trial), list(reports), result["exhausted"])
            # Tune keeps every trial's last result in memory; the journal has these rows already.
            reports.clear()
            return str(TrialScheduler.STOP if over else TrialScheduler.CONTINUE)

        def on_trial_error(self, controller: Any, trial: Any) -> None:
            _DRIVERS[token].on_failure(_assignment(trial), _failure_of(trial))

    class StartedCallback(Callback):
        """Tells the driver which assignments have begun."""

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            _DRIVERS[token].on_started(_assignment(trial))

    class AskedToStop(Stopper):
        """Ends the sweep when the driver was asked to."""

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return _DRIVERS[token].should_stop()

    return AssignmentSearcher(), ReportingScheduler(), StartedCallback(), AskedToStop()


def _assignment(trial: Any) -> list[int]:
    return [fields[0] for fields in json.loads(trial.config["assignment"])]


def _failure_of(trial: Any) -> Failure:
    error = trial.get_pickled_error()
    cause: BaseException | None = getattr(error, "cause", None) if error is not None else None
    if cause is not None:
        return classify(type(cause).__name__, f"{type(cause).__name__}: {cause}")
    return classify(type(error).__name__, str(error))

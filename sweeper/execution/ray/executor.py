"""Ray Tune as a stateless executor: it starts processes, carries reports, and asks the driver what to do.

Tune holds no state of the sweep. Its searcher hands out the driver's assignments, its scheduler passes reports to the
driver, its stopper asks whether to continue; `Tuner.restore` is never used. Tune pickles these objects when a Tuner is
created, so they hold a token by which they find the driver in this process.

In cohorts, each Tune trial is a process for one cohort. It starts empty. The answer to each report names the trials
that are over and the trials that join. Only as many processes are requested as the remaining trials would fill with
lanes, so that an autoscaler starts no more nodes than needed.

Ray reads its environment when it is imported: call `sweeper.core.processes.prepare` before this module.
"""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ray import cloudpickle, tune
from ray.air.execution._internal import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune import Callback, Stopper
from ray.tune.execution import tune_controller
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import ProgressReporter
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Dispatcher, WorkerSlot
from sweeper.execution.driver.judging import memory_failure
from sweeper.execution.driver.steering import Interrupts
from sweeper.reporting.live import in_notebook
from trainables.files.locks import Scratch
from trainables.worker.trainable import SweepTrainable
from trainables.worker.trial_reports import CRASH, ERROR, PREEMPTED, Failure, TrialEnded, WorkerCommand, WorkerReport
from trainables.worker.trial_settings import TrialSettings


class OutOfMemoryActorError(RayActorError):
    """A trial's process was killed because its node ran out of memory."""


class _ActorManager(RayActorManager):
    """Tune's actor manager, changed to treat a process killed by Ray's memory monitor like any other dead process.

    In Ray 2.60 the process's tasks raise an OutOfMemoryError, which is not a RayActorError. Tune treats it as an
    internal error and ends the whole run.
    """

    def _actor_task_failed(self, tracked_actor_task: object, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = OutOfMemoryActorError(error_msg=str(exception))
        super()._actor_task_failed(tracked_actor_task, exception)


@contextmanager
def amended_tune() -> Iterator[None]:
    """Make Tune continue after Ray's memory monitor has killed a trial's process."""
    # Tune has no option for its actor manager, so the module's name is replaced for the duration of a run.
    tune_controller.RayActorManager = _ActorManager
    try:
        yield
    finally:
        tune_controller.RayActorManager = RayActorManager


#: Label with a node's id, which Ray sets on every node.
NODE_LABEL = "ray.io/node-id"


@dataclass
class Workers:
    """A sweep's processes on Ray, started or requested.

    Attributes:
        driver: Driver of the sweep.
        interrupts: Counter of Ctrl-C presses.
        autoscales: Whether more processes can be requested than fit now.
        lanes: Number of trials that a process trains at once; 0 until it is measured.
        slots: Id of Tune's trial → worker.
    """

    driver: Driver
    interrupts: Interrupts | None
    autoscales: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        """Start without processes."""
        self.slots: dict[str, WorkerSlot] = {}
        self.dispatcher = Dispatcher(self.driver, self.slots.values())

    def open(self, name: str) -> WorkerSlot | None:
        """Return a process to request; `None` if none is needed. It has an assignment, unless it starts empty."""
        slot = WorkerSlot()
        if self.driver.settings.together:
            if len(self.slots) >= self.wanted():
                return None
            slot.share = self.driver.work.next_share
        else:
            assignment = self.driver.work.next()
            if assignment is None:
                return None
            slot.assignments, slot.share = [assignment], self.driver.work.share_of(assignment)
        self.slots[name] = slot
        return slot

    def wanted(self) -> int:
        """Return how many processes the remaining trials would fill: at most one per trial, and as many as fit now.

        On a cluster that can grow, it is the number that the trials' lanes need.
        """
        trials = self.driver.work.outstanding
        wanted = min(self.driver.work.processes, trials)
        if self.autoscales and self.lanes:
            limit = self.dispatcher.most_lanes // self.driver.settings.seeds.count
            lanes = min(self.lanes, max(1, limit)) if self.dispatcher.most_lanes else self.lanes
            wanted = max(wanted, math.ceil(trials / lanes))
        return wanted

    def answer(self, slot: WorkerSlot, report: WorkerReport) -> WorkerCommand:
        """Return the next command for a process that has reported; it ends if it then has no assignment."""
        self.lanes = max(self.lanes, len(slot.assignments) + report.room)
        command = self.dispatcher.on_report(slot, report)
        empty = self.driver.settings.together and not slot.assignments
        assignment = self.dispatcher.offer(slot.kind, slot.share) if empty else None
        return command if assignment is None else self.dispatcher.begin(slot, assignment, command.over)


#: Token → processes of a running sweep, for the objects that Tune pickles.
_RUNNING: dict[str, Workers] = {}


class DriverHandle:
    """Base of the objects that Tune pickles and calls; finds the driver by a token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    @contextmanager
    def workers(self) -> Iterator[Workers]:
        """Yield the processes and their driver; keep an exception, because Tune would treat it as a trial's failure."""
        workers = _RUNNING[self._token]
        if workers.driver.broken is not None:
            raise workers.driver.broken
        try:
            yield workers
        except Exception as error:
            workers.driver.broken = error
            raise


def execute(
    driver: Driver,
    settings: TrialSettings,
    *,
    resources: Mapping[str, float],
    pending: int,
    autoscales: bool = False,
    trainable: type[SweepTrainable] = SweepTrainable,
    interrupts: Interrupts | None = None,
) -> None:
    """Run the driver's assignments until none is left or a stop is requested.

    Args:
        driver: Driver of the sweep.
        settings: Settings of all trials.
        resources: Resources of one trial, e.g. `{"cpu": 1, "gpu": 0.25}`; the driver's GPU share overrides `gpu`.
        pending: Number of pending trials besides the running ones; an autoscaler sees only pending trials.
        autoscales: Whether the cluster can grow beyond what fits now.
        trainable: Class that runs in the trials' processes.
        interrupts: Counter of Ctrl-C presses. Replaces Tune's handler, which answers only in its log.
    """
    # By default, Tune keeps one trial pending for a custom searcher (ray-project/ray#43451).
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(1, pending))
    for name in _ADVISORS:
        logging.getLogger(name).addFilter(_no_advice)
    token = secrets.token_hex(8)
    together, lanes = driver.settings.together, settings.lanes
    per_process = max(1, lanes // driver.settings.seeds.count) if lanes else 0
    _RUNNING[token] = Workers(driver, interrupts, autoscales, per_process)
    if interrupts is not None:
        os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    prepared = tune.with_resources(
        tune.with_parameters(trainable, settings=settings, together=together), partial(_bundle, dict(resources))
    )
    with Scratch("sweeper-tune-") as scratch, amended_tune():
        try:
            tune.Tuner(
                prepared,
                tune_config=tune.TuneConfig(
                    search_alg=AssignmentSearcher(token),
                    scheduler=ReportingScheduler(token),
                    num_samples=-1,  # until the searcher says that it has finished
                    reuse_actors=True,  # a new process per trial takes 1.6 to 3.4 s, a reused one 0.03 s
                    trial_name_creator=_short_name,
                    trial_dirname_creator=_short_name,
                ),
                run_config=tune.RunConfig(
                    name="sweep",
                    storage_path=str(scratch),
                    stop=AskedToStop(token),
                    callbacks=[StartedCallback(token)],
                    verbose=0,
                    progress_reporter=_NoReporter() if in_notebook() else None,
                    failure_config=tune.FailureConfig(max_failures=0),  # the driver counts retries
                    # Trials write their own checkpoints; Tune would ask for one more at every trial's end.
                    checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
                ),
            ).fit()
        except Exception as error:  # Tune wraps what its callbacks raise; show the driver's own error
            raise driver.broken or error from None
        finally:
            del _RUNNING[token]
    if driver.broken is not None:
        raise driver.broken


def _no_advice(record: logging.LogRecord) -> bool:
    """Drop Tune's messages about metrics that it does not keep, and about `Tuner.restore`, which is never used."""
    return not any(text in record.getMessage() for text in ("Could not fetch metrics", "Tuner.restore"))


#: Loggers of these messages.
_ADVISORS = ("ray.tune.analysis.experiment_analysis", "ray.tune.tune", "ray.tune.execution.tune_controller")


class _NoReporter(ProgressReporter):
    """Replaces Tune's own display, which would clear a notebook's cell."""

    def should_report(self, trials: object, done: bool = False) -> bool:
        """Return False: `sweeper.reporting.live` shows the sweep."""
        return False

    def report(self, trials: object, done: bool, *sys_info: object) -> None:
        """Show nothing."""


class AssignmentSearcher(DriverHandle, Searcher):
    """Suggests the driver's next assignment; waits while an assignment in flight could fail and return."""

    def suggest(self, trial_id: str) -> object:
        """Return the next assignment, `None` if there is none now, or `Searcher.FINISHED`."""
        with self.workers() as workers:
            slot = workers.open(trial_id)
            if slot is not None:
                described = [
                    unit for assignment in slot.assignments for unit in workers.driver.work.describe(assignment)
                ]
                avoided = sorted(workers.driver.full_disks.nodes)
                return {"assignment": described, "gpu": slot.share, "avoid": avoided}
            return Searcher.FINISHED if workers.driver.work.exhausted else None

    def on_trial_complete(self, trial_id: str, result: object = None, error: bool = False) -> None:
        """Forget the process; the driver learns everything from reports and failures."""
        _RUNNING[self._token].slots.pop(trial_id, None)

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing: the journal is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the journal is the state."""


class ReportingScheduler(DriverHandle, FIFOScheduler):
    """Passes each report to the driver, which journals it, and stops the trial if the driver decides so."""

    def on_trial_result(self, controller: object, trial: Trial, result: dict[str, Any]) -> str:
        """Return Tune's STOP if the trial's process has nothing left to do, else CONTINUE."""
        with self.workers() as workers:
            slot = workers.slots[trial.trial_id]
            command = workers.answer(slot, result["report"][0])
        # Tune keeps every trial's last result in memory, but the journal already has these rows.
        result["report"].clear()
        if not slot.assignments:
            return str(TrialScheduler.STOP)
        if command != WorkerCommand():
            # Calls reach an actor in the order in which they are made, so this call arrives before Tune's next step.
            trial.temporary_state.ray_actor.direct.options(num_returns=0).remote(command)
        return str(TrialScheduler.CONTINUE)

    def on_trial_error(self, controller: object, trial: Trial) -> None:
        """Report the death of the trial's process, with its reason, to the driver."""
        with self.workers() as workers:
            slot = workers.slots.get(trial.trial_id)
            if slot is not None:  # otherwise it died after its last report: nothing is lost
                workers.dispatcher.on_exit(slot, _failure_of(trial))


class StartedCallback(DriverHandle, Callback):
    """Reports to the driver which assignments have started."""

    def on_trial_start(self, iteration: int, trials: object, trial: Trial, **info: object) -> None:
        """Report the start of a process's assignments."""
        with self.workers() as workers:
            for assignment in workers.slots[trial.trial_id].assignments:
                workers.driver.on_started(assignment)


class AskedToStop(DriverHandle, Stopper):
    """Ends Tune's run when the driver was asked to stop."""

    def __call__(self, trial_id: str, result: object) -> bool:
        """Return False: the scheduler stops single trials."""
        return False

    def stop_all(self) -> bool:
        """Flush the driver and return whether to end the run; Tune calls this on every turn of its loop."""
        with self.workers() as workers:
            driver, pressed = workers.driver, workers.interrupts
            driver.flush()
            # A requested empty process could wait for ever for a node that no trial needs any more.
            done = driver.settings.together and driver.work.exhausted
            return done or driver.steering.should_stop() or (pressed is not None and pressed.presses > 0)


def _bundle(resources: Mapping[str, float], config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    """Return the resources that Tune reserves for a trial; trials with equal resources reuse processes."""
    amounts = {**resources, "gpu": config["gpu"]} if config.get("gpu") is not None else resources
    bundle = {name.upper(): float(amount) for name, amount in amounts.items() if amount}
    elsewhere = [{NODE_LABEL: f"!in({','.join(config['avoid'])})"}] if config.get("avoid") else None
    return tune.PlacementGroupFactory([bundle], bundle_label_selector=elsewhere)


def _short_name(trial: Trial) -> str:
    """Return a trial's id as its name; by default Tune uses the whole configuration, which nothing reads."""
    return str(trial.trial_id)


def _failure_of(trial: Trial) -> Failure:
    """Return why the trial's process ended, from the exception that Tune has written to the trial's folder."""
    if trial.pickled_error_file is None:
        return process_death("Error", Path(trial.error_file).read_text() if trial.error_file else "")
    error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    cause = getattr(error, "cause", None)
    return cause.failure if isinstance(cause, TrialEnded) else process_death(type(error).__name__, str(error))


#: Words in Ray's message when it kills a process to free its node's memory, in the first line before a page of advice.
_MEMORY_KILLS = ("memory monitor", "low on memory")

#: Used memory of the node and of the process in that message, in GB.
_RAY_MEMORY, _RAY_HELD = re.compile(r"was ([\d.]+)GB used"), re.compile(r"actual memory used=([\d.]+)GB")

#: Ray's exceptions for a dead process or node.
_DEATHS = frozenset({"ActorDiedError", "RayActorError", "ActorUnavailableError", "NodeDiedError", "WorkerCrashedError"})

#: Exceptions of Tune that only wrap Ray's message.
_WRAPPERS = ("TuneError", "Error")

_NODE_DEATH = "its node has died"

_PREEMPTIONS = ("preempt", "node was terminated", "node has been drained")


def process_death(type_name: str, text: str) -> Failure:
    """Return the failure behind an exception of Ray's; exceptions of a trial itself arrive as TrialEnded.

    Ray 2.60 uses one type for the death of a process and of its node, and gives the cause only in the text. The type is
    checked first, because the text of another exception, such as a path with `preemptible`, is not about a node.

    Args:
        type_name: Class of the exception, e.g. `ActorDiedError`.
        text: Message of the exception.

    Examples:
        >>> process_death("ActorDiedError", "The node was terminated: spot capacity reclaimed").kind
        'preempted'
        >>> process_death("ValueError", "cannot read /data/preemptible/train.bin").kind
        'error'
    """
    lines, died = [line.strip() for line in text.strip().splitlines()] or [""], type_name in _DEATHS
    if died and any(words in text.lower() for words in _PREEMPTIONS):
        return Failure(PREEMPTED, message=lines[0], counts=False)
    memory = [line for line in lines if any(words in line.lower() for words in _MEMORY_KILLS)]
    if "OutOfMemory" in type_name or (memory and (died or type_name in _WRAPPERS)):
        amounts = _RAY_MEMORY.search(text), _RAY_HELD.search(text)
        used, own = (float(match[1]) if match else None for match in amounts)
        return memory_failure(1.0 if own is None else own / (used or own), memory[0] if memory else lines[0])
    if died and _NODE_DEATH in text.lower():
        return Failure(PREEMPTED, {"died": "node"}, counts=False)
    return Failure(CRASH, message=lines[0]) if died else Failure(ERROR, message=lines[-1] or type_name)

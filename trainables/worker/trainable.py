"""The Ray Tune trainable around a trial; the only file of `trainables` that imports ray.

Its processes are reused: starting a new trial takes hundredths of a second, and starting a new process takes seconds.
One Tune trial trains one configuration, or several if no scheduler can stop them. If trials train together as lanes of
a cohort, a Tune trial is a process to which the driver keeps sending configurations.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NotRequired, TypedDict

import ray
from ray import tune
from ray._private.state import state as ray_state

from trainables.worker.trial_reports import PREEMPTED, STORAGE, Failure, TrialEnded, WorkerCommand, WorkerReport
from trainables.worker.trial_settings import Assignment, TrialSettings
from trainables.worker.workers import CohortWorker, Worker, failure_of

#: Seconds between two checks whether the node is being drained. Clouds warn 30 s (spot, GCP) to 120 s (AWS) ahead;
#: 1,000 processes send 500 small requests a second to the head's control store.
DRAIN_LOOK_SECONDS = 2.0


@contextmanager
def _typed(node: str) -> Iterator[None]:
    """Raise every error as TrialEnded; a storage error names the node, since its disk may be full."""
    try:
        yield
    except Exception as error:
        failure = failure_of(error)
        raise TrialEnded(failure.having(node=node) if failure.kind == STORAGE else failure) from error


class LeavingNode:
    """Checks whether this process's node is being drained: by a cloud's warning, an autoscaler, or `ray drain-node`."""

    def __init__(self) -> None:
        self.node: str = ray.get_runtime_context().get_node_id()
        self._looked, self._leaving = -math.inf, False

    def __call__(self) -> bool:
        """Return whether the node is being drained, as of the last check."""
        if not self._leaving and time.monotonic() - self._looked >= DRAIN_LOOK_SECONDS:
            self._looked = time.monotonic()
            # Private to Ray 2.60, which has no public call for it.
            self._leaving = self.node in ray_state.get_draining_nodes()
        return self._leaving


class TuneConfig(TypedDict):
    """The config of a Tune trial: its assignment, and its GPU fraction if it has one."""

    assignment: list[Assignment]
    gpu: NotRequired[float | None]


class SweepTrainable(tune.Trainable):  # type: ignore[misc]  # Ray is read without its types
    """Trains the configurations of its assignment one after another, or a cohort that the driver's commands fill.

    A step ends with a `WorkerReport`; `direct` sets the command for the next step.

    `config` contains `assignment`, which is empty for cohorts; it is a list, because Tune resolves mappings. The
    optional `gpu` is the GPU fraction of this process; a process is reused only for the same fraction.
    """

    def setup(self, config: TuneConfig, settings: TrialSettings, together: bool = False) -> None:
        """Load the data set and start the assignment.

        Args:
            config: assignment and GPU fraction.
            settings: settings of all trials.
            together: whether trials train as a cohort.
        """
        share = config.get("gpu")
        self._leaving, self._broken = LeavingNode(), None
        try:
            with _typed(self._leaving.node):
                settled = settings if share is None else replace(settings, gpu=share)
                self._worker = (CohortWorker if together else Worker)(settled, self._leaving)
                self._take(config)
        except TrialEnded as error:
            self._broken = error  # raised by the first step, because Ray keeps only the text of an error in `setup`

    def direct(self, command: WorkerCommand) -> None:
        """Set the command that the next step follows."""
        self._command = command

    def step(self) -> dict[str, object]:
        """Train until a report is due; return it.

        It covers several configurations if they are short or form a cohort.
        """
        if self._broken is not None:
            raise self._broken
        if self._leaving():
            # The step before has sent the trial's last report and written its checkpoint.
            raise TrialEnded(Failure(PREEMPTED, {"leaving": "node"}, counts=False))
        command, self._command = self._command, WorkerCommand()
        with _typed(self._leaving.node):
            report = self._worker.follow(command) or WorkerReport()
            for _, failure in report.lost:
                if failure.kind == STORAGE:
                    raise TrialEnded(failure)
        # A list reaches the scheduler unchanged; Tune would flatten a mapping key by key.
        return {"report": [report]}

    def reset_config(self, new_config: TuneConfig) -> bool:
        """Start another assignment in the same process."""
        with _typed(self._leaving.node):
            self._take(new_config)
        return True

    def cleanup(self) -> None:
        """Stop the current trials with a checkpoint, since the sweep is being stopped."""
        if self._broken is None:
            self._worker.leave()

    def _take(self, config: TuneConfig) -> None:
        self._worker.leave()
        assignment = config["assignment"]
        self._command = WorkerCommand(new=(assignment,) if assignment else ())

"""The Ray Tune Trainable around a trial: the only file here that imports ray.

A class trainable whose processes are reused: a new trial costs hundredths of a second, where a process of its
own costs seconds. One Tune trial carries one configuration, or several where no scheduler can stop any. Where trials
train together as lanes of a cohort, it is a process that the driver keeps filled with them.
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

#: A process asks this often whether its node is to leave: clouds warn 30 s (spot, GCP) to 120 s (AWS) ahead. Of 1,000
#: processes that is 500 small requests a second to the head's control store.
DRAIN_LOOK_SECONDS = 2.0


@contextmanager
def _typed(node: str) -> Iterator[None]:
    """Raise every error as TrialEnded; one caused by a lack of storage names the node, for it may be its disk."""
    try:
        yield
    except Exception as error:
        raise TrialEnded(_of_node(failure_of(error), node)) from error


def _of_node(failure: Failure, node: str) -> Failure:
    return failure.having(node=node) if failure.kind == STORAGE else failure


class LeavingNode:
    """Whether this process's node is being drained: by a cloud's warning, an autoscaler, or `ray drain-node`."""

    def __init__(self) -> None:
        self.node: str = ray.get_runtime_context().get_node_id()
        self._looked, self._leaving = -math.inf, False

    def __call__(self) -> bool:
        """Return whether the node is to leave, as of the last time it was asked."""
        if not self._leaving and time.monotonic() - self._looked >= DRAIN_LOOK_SECONDS:
            self._looked = time.monotonic()
            self._leaving = self.node in ray_state.get_draining_nodes()
        return self._leaving


class TuneConfig(TypedDict):
    """What Tune hands to a trial: its assignment, and its share of a GPU where it has one."""

    assignment: list[Assignment]
    gpu: NotRequired[float | None]


class SweepTrainable(tune.Trainable):  # type: ignore[misc]  # Ray is read without its types
    """Trains the configurations of its assignment one after the other, or what it is told to, together.

    A step ends with a report, as one of `trainables.worker.trial_reports`; `direct` says what the next one is to do.

    `config` holds `assignment`, empty where trials train together: a list, into which Tune does not look. `gpu`, where
    it is given, is the share of a GPU that is this process's; a process is reused only for the same share.
    """

    def setup(self, config: TuneConfig, settings: TrialSettings, together: bool = False) -> None:
        """Load the data set and start the assignment; `settings` are those of all trials."""
        share = config.get("gpu")
        self._leaving, self._broken = LeavingNode(), None
        try:
            with _typed(self._leaving.node):
                settled = settings if share is None else replace(settings, gpu=share)
                self._worker = (CohortWorker if together else Worker)(settled, self._leaving)
                self._take(config)
        except TrialEnded as error:
            self._broken = error  # raised by the first step: of a process that raises here, Ray keeps the text alone

    def direct(self, command: WorkerCommand) -> None:
        """Have the next step follow this command."""
        self._command = command

    def step(self) -> dict[str, object]:
        """Return a report: of at least one configuration, of several when they are short or train together."""
        if self._broken is not None:
            raise self._broken
        if self._leaving():
            # The trial's last report, and with it a checkpoint, went out at the end of the step before.
            raise TrialEnded(Failure(PREEMPTED, {"leaving": "node"}, counts=False))
        command, self._command = self._command, WorkerCommand()
        with _typed(self._leaving.node):
            report = self._worker.follow(command) or WorkerReport()
            for _, failure in report.lost:
                if failure.kind == STORAGE:
                    raise TrialEnded(failure)
        # A list reaches the scheduler as it is, where a mapping would be flattened key by key.
        return {"report": [report]}

    def reset_config(self, new_config: TuneConfig) -> bool:
        """Take up another assignment in the same process."""
        with _typed(self._leaving.node):
            self._take(new_config)
        return True

    def cleanup(self) -> None:
        """Let go of the trials in hand: the sweep is being stopped."""
        if self._broken is None:
            self._worker.leave()

    def _take(self, config: TuneConfig) -> None:
        self._worker.leave()
        assignment = config["assignment"]
        self._command = WorkerCommand(new=(assignment,) if assignment else ())

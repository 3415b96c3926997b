"""The Ray Tune Trainable around a trial: the only file here that imports ray.

A class trainable whose processes are reused: a new trial costs hundredths of a second, where a process of its
own costs seconds. One Tune trial carries one configuration, or several where no scheduler can stop any. Where trials
train together as lanes of a cohort, it is a process that the driver keeps filled with them.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NotRequired, TypedDict

import ray
from ray import tune
from ray._private.state import state as ray_state

from trainables.worker.trial_reports import WorkerCommand, WorkerReport
from trainables.worker.trial_settings import Assignment, TrialSettings
from trainables.worker.workers import CohortWorker, Worker

#: A process asks this often whether its node is to leave: clouds warn 30 s (spot, GCP) to 120 s (AWS) ahead. Of 1,000
#: processes that is 500 small requests a second to the head's control store.
DRAIN_LOOK_SECONDS = 2.0


#: The numbers of errors caused by a lack of storage: full, over quota, or mounted read-only after its disk failed.
NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class NodeLeavingError(RuntimeError):
    """This process's node is about to be taken away; its trial has a checkpoint and continues elsewhere."""


class NodeDiskFullError(RuntimeError):
    """This process's node has no space left, or cannot write: its text begins with the node's id."""


@contextmanager
def _full_disk_of(node: str) -> Iterator[None]:
    """Name the node in an error caused by a lack of storage: the driver finds out whether its own is meant, too."""
    try:
        yield
    except OSError as error:
        if error.errno not in NOT_WRITABLE and "no space left on device" not in str(error).lower():
            raise
        raise NodeDiskFullError(f"{node}: {error}") from error


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
        self._leaving = LeavingNode()
        with _full_disk_of(self._leaving.node):
            settled = settings if share is None else replace(settings, gpu=share)
            self._worker = (CohortWorker if together else Worker)(settled, self._leaving)
            self._take(config)

    def direct(self, command: WorkerCommand) -> None:
        """Have the next step follow this command."""
        self._command = command

    def step(self) -> dict[str, object]:
        """Return a report: of at least one configuration, of several when they are short or train together."""
        if self._leaving():
            # The trial's last report, and with it a checkpoint, went out at the end of the step before.
            raise NodeLeavingError("its node is about to be removed: it continues from its checkpoint on another")
        command, self._command = self._command, WorkerCommand()
        with _full_disk_of(self._leaving.node):
            report = self._worker.follow(command) or WorkerReport()
            for _, _, text in report.lost:
                if any(os.strerror(number).lower() in text.lower() for number in NOT_WRITABLE):
                    raise NodeDiskFullError(f"{self._leaving.node}: {text}")
        # A list reaches the scheduler as it is, where a mapping would be flattened key by key.
        return {"report": [report]}

    def reset_config(self, new_config: TuneConfig) -> bool:
        """Take up another assignment in the same process."""
        with _full_disk_of(self._leaving.node):
            self._take(new_config)
        return True

    def cleanup(self) -> None:
        """Let go of the trials in hand: the sweep is being stopped."""
        with _full_disk_of(self._leaving.node):
            self._worker.leave()

    def _take(self, config: TuneConfig) -> None:
        self._worker.leave()
        assignment = config["assignment"]
        self._command = WorkerCommand(new=(assignment,) if assignment else ())

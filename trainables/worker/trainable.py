"""The Ray Tune Trainable around a trial, and the ranks of one on Ray: the only file here that imports ray.

A class trainable whose processes are reused: a new trial costs hundredths of a second, where a process of its
own costs seconds. One Tune trial carries one configuration, or several where no scheduler can stop any. Where trials
train together as lanes of a cohort, it is a process that the driver keeps filled with them.

Ranks are actors in the trial's placement group, one a bundle; the trainable is rank 0. Ray ends actors with the process
that made them, some time later. What ends them at once is their connection to rank 0, which the kernel closes with it;
so cards are free when a trial has been stopped.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NotRequired, TypedDict

import ray
from ray import tune
from ray._private.state import state as ray_state
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainables.worker.ranks import CrewOfProcesses, follow_orders
from trainables.worker.trial_reports import WorkerCommand, WorkerReport
from trainables.worker.trial_settings import TrialSettings
from trainables.worker.workers import CohortWorker, Worker

#: How long the actors may take to start: each imports torch, on a node that may be new.
START_SECONDS = 120.0

#: How long Ray is asked how a rank ended: of a lost node it learns after some seconds.
FATE_SECONDS = 5.0

#: A node that is gone closes nothing: after so many seconds without an answer its connections count as closed.
KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class RankActor:
    """The process of one rank that is not rank 0."""

    def follow(self, address: tuple[str, int], key: bytes, rank: int, settings: TrialSettings) -> None:
        """Follow the orders of rank 0, which listens at `address`; this process ends when rank 0 does."""
        connection = Client(address, authkey=key)
        keep_alive(connection)
        connection.send(rank)
        follow_orders(connection, settings, ray.util.get_node_ip_address())


def crew_of_actors(settings: TrialSettings) -> CrewOfProcesses:
    """Start the other ranks in the bundles of this actor's placement group, and meet them.

    Raises TimeoutError when they have not started in `START_SECONDS`, and what Ray raises when one cannot.
    """
    group, host, key = get_current_placement_group(), ray.util.get_node_ip_address(), secrets.token_bytes(32)
    assert group is not None, "Tune reserves one for each trial"
    bundle = group.bundle_specs[0]
    actor = ray.remote(num_cpus=bundle.get("CPU", 0), num_gpus=bundle.get("GPU", 0), max_restarts=0)(RankActor)
    with Listener((host, 0), backlog=settings.workers, authkey=key) as listener:
        running = []
        for rank in range(1, settings.workers):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            worker = actor.options(scheduling_strategy=place).remote()
            running.append(worker.follow.remote(listener.address, key, rank, settings))
        connections = _connected(listener, running)

    def fate(rank: int) -> str:
        try:
            ray.get(running[rank - 1], timeout=FATE_SECONDS)
        except GetTimeoutError:
            return "its process ended"
        except RayError as error:
            return " ".join(str(error).split())
        return "its process ended"

    return CrewOfProcesses(connections, host, settings.device, fate)


def _connected(listener: Listener, running: list[Any]) -> list[Connection]:
    """Return the connections of all ranks, in their order, as soon as each has called."""
    found: dict[int, Connection] = {}
    waiting: socket.socket = listener._listener._socket  # type: ignore[attr-defined]
    waiting.settimeout(1.0)
    for _ in range(int(START_SECONDS)):
        with suppress(TimeoutError, AuthenticationError):
            while len(found) < len(running):
                connection = listener.accept()
                keep_alive(connection)
                found[connection.recv()] = connection
        if len(found) == len(running):
            return [found[rank] for rank in sorted(found)]
        ended, _ = ray.wait(running, timeout=0)
        ray.get(ended)  # raises what one ended of
    raise TimeoutError(f"{len(running) - len(found)} of {len(running)} ranks have not started in {START_SECONDS:g} s")


def keep_alive(connection: Connection) -> None:
    """Have the kernel notice when the other end's node is gone."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE:
            same.setsockopt(socket.IPPROTO_TCP, option, value)


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
    """What Tune hands to a trial: its assignment as JSON text, and its share of a GPU where it has one."""

    assignment: str
    gpu: NotRequired[float | None]


class SweepTrainable(tune.Trainable):  # type: ignore[misc]  # Ray is read without its types
    """Trains the configurations of its assignment one after the other, or what it is told to, together.

    A step ends with a report, as one of `trainables.worker.trial_reports`; `direct` says what the next one is to do.

    `config` holds `assignment`, JSON text: a list of `[configuration, trial, values, seeds]`, empty where trials train
    together. It is text so that Tune has nothing in it to copy, flatten or look into. `gpu`, where it is given, is the
    share of a GPU that is this process's; a process is reused only for the same share.
    """

    def setup(self, config: TuneConfig, settings: Mapping[str, object] | None = None, together: bool = False) -> None:
        """Load the data set and start the assignment. `settings` are `TrialSettings` as plain values."""
        given = TrialSettings.from_mapping(settings or {})
        share = config.get("gpu")
        self._leaving = LeavingNode()
        with _full_disk_of(self._leaving.node):
            settled = given if share is None else replace(given, gpu=share)
            self._crew = crew_of_actors(settled) if settled.workers > 1 else None
            self._worker = (CohortWorker if together else Worker)(settled, self._leaving, self._crew)
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
        if self._crew is not None:
            self._crew.close()

    def _take(self, config: TuneConfig) -> None:
        self._worker.leave()
        assignment = json.loads(config["assignment"])
        self._command = WorkerCommand(new=(assignment,) if assignment else ())

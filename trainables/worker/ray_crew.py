"""The ranks of a trial on Ray: actors in the trial's placement group, one a bundle; the trainable is rank 0.

Ray ends actors with the process that made them, some time later. What ends them at once is their connection to rank 0,
which the kernel closes with it; so cards are free when a trial has been stopped.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainables.worker.rank_crew import CrewOfProcesses
from trainables.worker.rank_process import follow_orders
from trainables.worker.trial_settings import TrialSettings

START_SECONDS = 120.0
"""How long the actors may take to start: each imports torch, on a node that may be new."""

FATE_SECONDS = 5.0
"""How long Ray is asked how a rank ended: of a lost node it learns after some seconds."""

KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""A node that is gone closes nothing: after so many seconds without an answer its connections count as closed."""


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

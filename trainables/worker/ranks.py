"""The ranks of a trial: rank 0 gives the others orders, which these follow, and all end when one of them does.

Ranks find each other by a store at rank 0's address, and join one process group. Every other rank has a connection to
rank 0. Orders go one way; the other way comes a `RankFault` before a rank ends of its own error, and the connection's
end when it was killed. A trial without one of its ranks cannot go on: what rank 0 does with them then raises
RankLostError, by which its process ends as it would of any error, and the trial is tried again from its checkpoint. An
exchange on a card may never notice that a rank is missing; so rank 0 ends itself where it has not noticed in time.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import assert_never, cast

import psutil
import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainables.training.ranks.group import Build, Forget, Load, Order, Predict, Ranks, Train
from trainables.training.ranks.replicate import RankedReplicate
from trainables.worker.hang_watchdog import die_with_parent, ended_by, exit_code
from trainables.worker.trial_settings import DataSets, TrialSettings, prepare_process

LOOPBACK = "127.0.0.1"

#: The longest that a rank waits for the others in one exchange. An epoch's first one waits for the slowest to load the
#: data set; none waits for what rank 0 does alone.
LIMIT = timedelta(seconds=600)


@dataclass(frozen=True)
class Meeting:
    """Where and as what a rank joins.

    Attributes:
        host, port: of rank 0's store.
        rank: of the one that is told.
        size: how many ranks there are.
    """

    host: str
    port: int
    rank: int
    size: int


def open_store(host: str, size: int) -> TCPStore:
    """Return rank 0's store, on a free port of `host`; it does not wait for the others.

    It listens at that address alone: by itself torch's listens on every network, and asks nobody for a key.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port, listening = server.getsockname()[1], server.detach()
    return TCPStore(host, port, size, is_master=True, timeout=LIMIT, wait_for_workers=False, master_listen_fd=listening)


def join(meeting: Meeting, device: str, own_address: str, store: TCPStore | None = None) -> Ranks:
    """Join the process group; return when all ranks have.

    Args:
        meeting: where, and as what.
        device: `cuda` exchanges by NCCL, `cpu` by gloo.
        own_address: of this process's node, which says by which of its networks gloo talks.
        store: rank 0's own; the others connect to it.
    """
    if store is None:
        store = TCPStore(meeting.host, meeting.port, meeting.size, is_master=False, timeout=LIMIT)
    network = network_of(own_address)
    if network is not None:  # by itself gloo takes what the host's name stands for, which containers may not know
        os.environ.setdefault("GLOO_SOCKET_IFNAME", network)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo", store=store, rank=meeting.rank, world_size=meeting.size, timeout=LIMIT
    )
    return Ranks(meeting.rank, meeting.size)


def network_of(address: str) -> str | None:
    """Return the name of this machine's network interface that has `address`, or `None` where none has."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address == address for each in found):
            return str(name)
    return None


#: How long rank 0 waits, when an exchange has failed, for the reason: the end of a rank shows within milliseconds.
TOLD_SECONDS = 1.0

#: How long rank 0 may take to notice in an exchange that a rank has ended, before it ends itself: gloo does at once.
NOTICED_SECONDS = 5.0


class RankLostError(RuntimeError):
    """One of a trial's ranks has ended, so that the others cannot continue."""


@dataclass(frozen=True)
class RankFault:
    """What a rank says before it ends of its own error.

    Attributes:
        text: the error's class and text.
        exchanging: it may have failed because another rank ended first.
    """

    text: str
    exchanging: bool


def first_lost(faults: Mapping[int, RankFault | None]) -> int:
    """Return the rank whose end the others' ends followed from.

    Args:
        faults: rank → what it said before it ended, `None` where nothing, in the order in which they were heard.
    """
    own = [rank for rank, fault in faults.items() if fault is not None and not fault.exchanging]
    killed = [rank for rank, fault in faults.items() if fault is None]
    return (own or killed or [*faults])[0]


class CrewOfProcesses:
    """The other ranks of this process's trials; see `trainables.training.ranks.Crew`.

    Attributes:
        ranks: the group, seen from rank 0.
    """

    def __init__(
        self, connections: Sequence[Connection], host: str, device: str, fate: Callable[[int], str] | None = None
    ) -> None:
        """Meet the other ranks; return when all have joined the process group.

        Args:
            connections: to ranks 1, 2, …
            host: the address of this process's node, where they find the store.
            device: `cpu` or `cuda`.
            fate: rank → how it ended, in words, once it has.
        """
        self._connections, self._fate = list(connections), fate or (lambda rank: "its process ended")
        self._faults: dict[int, RankFault | None] = {}
        self._numbers = count()
        self._news, self._over = threading.Event(), threading.Event()
        self._waiting = False
        self._said: str | None = None
        size = 1 + len(self._connections)
        store = open_store(host, size)
        for rank, connection in enumerate(self._connections, start=1):
            connection.send(Meeting(host, store.port, rank, size))
        threading.Thread(target=self._watch, daemon=True).start()
        with self._failures_named():
            self.ranks = join(Meeting(host, store.port, 0, size), device, host, store)

    def number(self) -> int:
        """Return a number that no replicate has had."""
        return next(self._numbers)

    def tell(self, order: Order) -> None:
        """Send an order to every rank. Raises RankLostError when one has ended."""
        with self._failures_named():
            for connection in self._connections:
                connection.send(order)

    @contextmanager
    def together(self, order: Order) -> Iterator[None]:
        """Send an order; what runs inside is rank 0's part of it. Raises RankLostError when a rank ends meanwhile."""
        self.tell(order)
        with self._failures_named():
            yield

    def close(self) -> None:
        """Let the other ranks end."""
        self._over.set()
        for connection in self._connections:
            connection.close()
        with suppress(Exception):  # of ranks that have gone
            dist.destroy_process_group()

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        """Raise RankLostError in place of whatever fails inside because a rank has ended."""
        if self._news.is_set():
            raise RankLostError(self._reason())
        self._waiting = True
        try:
            yield
        except Exception as error:
            self._waiting = False  # it has been noticed
            if not self._news.wait(TOLD_SECONDS):
                raise
            raise RankLostError(self._reason()) from error
        finally:
            self._waiting = False

    def _reason(self) -> str:
        """Return which rank was the cause, and how it ended."""
        if self._said is not None:
            return self._said
        time.sleep(0.1)  # they end at almost the same time, and what misses another may be faster to say so
        faults = dict(self._faults)
        rank = first_lost(faults)
        fault = faults[rank]
        said = fault.text if fault is not None else self._fate(rank)
        self._said = f"rank {rank} of {1 + len(self._connections)} was lost: {said}"
        return self._said

    def _watch(self) -> None:
        """Take in what the other ranks say, and their ends, until the first one ends; then see that rank 0 notices."""
        while not self._over.is_set() and len(self._faults) < len(self._connections):
            told = [c for rank, c in enumerate(self._connections, start=1) if rank not in self._faults]
            try:
                ready = wait(told, 0.1 if self._news.is_set() else None)
            except OSError:
                return  # they were closed: it is over
            for found in ready:
                connection = cast(Connection, found)
                rank = 1 + self._connections.index(connection)
                try:
                    self._faults[rank] = connection.recv()
                except (EOFError, OSError):
                    self._faults[rank] = None
            if self._over.is_set():
                return
            if ready and not self._news.is_set():
                self._news.set()
                threading.Thread(target=self._see_that_it_is_noticed, daemon=True).start()

    def _see_that_it_is_noticed(self) -> None:
        deadline = time.monotonic() + NOTICED_SECONDS
        while self._waiting and not self._over.is_set():
            if time.monotonic() > deadline:
                sys.stderr.write(f"{self._reason()}; the exchange with it did not end\n")
                sys.stderr.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.05)


class Follower:
    """One rank's twins of rank 0's replicates."""

    def __init__(self, settings: TrialSettings, ranks: Ranks) -> None:
        """Load the data set; this process has been prepared for `settings`."""
        self._settings, self._ranks = settings, ranks
        self._datasets = DataSets(settings)
        self._twins: dict[int, RankedReplicate] = {}

    def follow(self, order: Order) -> None:
        """Do this rank's part of what rank 0 is about to do."""
        match order:
            case Build():
                dataset = self._datasets.named(order.dataset)
                given = {"seed": order.seed, "dataset": dataset, **self._settings.of_replicates}
                self._twins[order.replicate] = RankedReplicate(order.configuration, ranks=self._ranks, **given)
            case Load():
                state = torch.load(io.BytesIO(order.state), map_location="cpu", weights_only=True)
                self._twins[order.replicate].load_state_dict(state)
            case Train():
                self._twins[order.replicate].train_epoch()
            case Predict():
                twin = self._twins[order.replicate]
                with twin.weights_of(order.stage):
                    twin.predicted(twin.dataset.splits[order.split])
            case Forget():
                self._twins.clear()
            case _:
                assert_never(order)


def follow_orders(connection: Connection, settings: TrialSettings, own_address: str = LOOPBACK) -> None:
    """Follow rank 0's orders; the process ends with the connection, whatever it is doing.

    Args:
        connection: to rank 0.
        settings: of all trials of the sweep.
        own_address: of this process's node.
    """
    orders: SimpleQueue[Meeting | Order] = SimpleQueue()
    threading.Thread(target=_listen, args=(connection, orders), daemon=True).start()
    exchanging = False
    try:
        threadpool_limits(settings.threads)
        prepare_process(settings)
        meeting = orders.get()
        assert isinstance(meeting, Meeting), "it comes first"
        exchanging = True
        follower = Follower(settings, join(meeting, settings.device, own_address))
        while True:
            order = orders.get()
            assert not isinstance(order, Meeting), "it comes once"
            exchanging = isinstance(order, (Train, Predict))
            follower.follow(order)
    except Exception as error:
        traceback.print_exception(error)
        missed = exchanging and isinstance(error, (RuntimeError, OSError)) and not isinstance(error, _OWN)
        with suppress(OSError):  # rank 0 may have ended
            connection.send(RankFault(f"{type(error).__name__}: {error}", missed))
        os._exit(1)


#: RuntimeErrors that no other rank's end can be the cause of.
_OWN = (torch.OutOfMemoryError, NotImplementedError)


def _listen(connection: Connection, orders: SimpleQueue[Meeting | Order]) -> None:
    """Pass on orders as they come; end this process, whatever it is doing, when rank 0 has ended."""
    while True:
        try:
            orders.put(connection.recv())
        except (EOFError, OSError):
            os._exit(0)


def forked_crew(settings: TrialSettings, drivers: Connection) -> CrewOfProcesses:
    """Fork the other ranks of a trial process on this machine, and meet them.

    It has to come before this process's first torch operation: a fork after one lacks the threads of its pools. The
    kernel ends the ranks with this process.

    Args:
        settings: of all trials of the sweep.
        drivers: this process's connection to the driver, which the ranks let go of.
    """
    leader, connections, processes = os.getpid(), list[Connection](), list[int]()
    for _ in range(1, settings.workers):
        ours, theirs = Pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for inherited in (drivers, ours, *connections):
                    inherited.close()
                die_with_parent(leader)
                follow_orders(theirs, settings)
            finally:
                os._exit(1)
        theirs.close()
        connections.append(ours)
        processes.append(pid)

    def end_of(rank: int) -> str:
        return ended_by(exit_code(processes[rank - 1]))

    return CrewOfProcesses(connections, LOOPBACK, settings.device, end_of)

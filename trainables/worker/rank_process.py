"""A rank of a trial that is not rank 0: it follows rank 0's orders, and ends when rank 0 does."""

from __future__ import annotations

import io
import os
import traceback
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import assert_never

import torch
from threadpoolctl import threadpool_limits

from trainables.training.ranks import Build, Forget, Load, Order, Predict, RankedReplicate, Ranks, Train
from trainables.worker.hang_watchdog import die_with_parent, ended_by, exit_code
from trainables.worker.rank_crew import LOOPBACK, CrewOfProcesses, Meeting, RankFault, join
from trainables.worker.trial_settings import DataSets, TrialSettings, prepare_process


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
                self._twins[order.replicate] = self._built(order)
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

    def _built(self, order: Build) -> RankedReplicate:
        settings = self._settings
        return RankedReplicate(
            order.configuration,
            seed=order.seed,
            dataset=self._datasets.named(order.dataset),
            max_epochs=settings.max_epochs,
            ranks=self._ranks,
            device=settings.device,
            training=settings.training,
            bins=settings.evaluation.bins,
        )


def follow_orders(connection: Connection, settings: TrialSettings, own_address: str = LOOPBACK) -> None:
    """Follow rank 0's orders; the process ends with the connection, whatever it is doing.

    Args:
        connection: to rank 0.
        settings: of all trials of the sweep.
        own_address: of this process's node.
    """
    orders: SimpleQueue[Meeting | Order] = SimpleQueue()
    Thread(target=_listen, args=(connection, orders), daemon=True).start()
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


_OWN = (torch.OutOfMemoryError, NotImplementedError)
"""RuntimeErrors that no other rank's end can be the cause of."""


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

"""How the ranks of a trial find each other: a store at rank 0's address, and a process group that all of them join."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainables.training.ranks import Ranks

LOOPBACK = "127.0.0.1"

COLLECTIVE_SECONDS = 600.0
"""The longest that a rank waits for the others in one exchange. An epoch's first one waits for the slowest to load the
data set; none waits for what rank 0 does alone."""


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
    limit = timedelta(seconds=COLLECTIVE_SECONDS)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port, listening = server.getsockname()[1], server.detach()
    return TCPStore(host, port, size, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=listening)


def join(meeting: Meeting, device: str, own_address: str, store: TCPStore | None = None) -> Ranks:
    """Join the process group; return when all ranks have.

    Args:
        meeting: where, and as what.
        device: `cuda` exchanges by NCCL, `cpu` by gloo.
        own_address: of this process's node, which says by which of its networks gloo talks.
        store: rank 0's own; the others connect to it.
    """
    limit = timedelta(seconds=COLLECTIVE_SECONDS)
    if store is None:
        store = TCPStore(meeting.host, meeting.port, meeting.size, is_master=False, timeout=limit)
    network = network_of(own_address)
    if network is not None:  # by itself gloo takes what the host's name stands for, which containers may not know
        os.environ.setdefault("GLOO_SOCKET_IFNAME", network)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=store,
        rank=meeting.rank,
        world_size=meeting.size,
        timeout=limit,
    )
    return Ranks(meeting.rank, meeting.size)


def network_of(address: str) -> str | None:
    """Return the name of this machine's network interface that has `address`, or `None` where none has."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address == address for each in found):
            return str(name)
    return None

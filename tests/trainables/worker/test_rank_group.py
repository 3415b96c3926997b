"""By which network ranks talk; that they meet is seen in tests/trainables/training/ranks and test_rank_process.py."""

from __future__ import annotations

import psutil

from trainables.worker.rank_group import LOOPBACK, network_of, open_store


def test_the_network_of_an_address_is_named_as_the_system_does() -> None:
    name = network_of(LOOPBACK)
    assert name is not None and LOOPBACK in {each.address for each in psutil.net_if_addrs()[name]}
    assert network_of("192.0.2.1") is None, "reserved for documents: nobody's"


def test_the_store_is_reached_by_its_own_network_alone() -> None:
    """Torch would listen on every network of the machine, and asks nobody for a key."""
    store = open_store(LOOPBACK, 2)
    listening = {each.laddr for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert [address.ip for address in listening if address.port == store.port] == [LOOPBACK]

"""Which of several lost ranks is named as the cause; the rest is seen in test_rank_process.py."""

from __future__ import annotations

import psutil
import pytest

from trainables.worker.rank_crew import LOOPBACK, RankFault, first_lost, network_of, open_store

MISSED = RankFault("RuntimeError: Connection closed by peer", exchanging=True)
OWN = RankFault("ValueError: no such file", exchanging=False)


@pytest.mark.parametrize(
    ("heard", "cause"),
    [
        ({3: MISSED, 1: None, 2: MISSED}, 1),
        ({2: MISSED, 3: OWN, 1: MISSED}, 3),
        ({1: OWN}, 1),
        ({2: MISSED, 1: MISSED}, 2),
    ],
)
def test_the_rank_that_missed_no_other_is_the_cause(heard: dict[int, RankFault | None], cause: int) -> None:
    assert first_lost(heard) == cause


def test_the_network_of_an_address_is_named_as_the_system_does() -> None:
    name = network_of(LOOPBACK)
    assert name is not None and LOOPBACK in {each.address for each in psutil.net_if_addrs()[name]}
    assert network_of("192.0.2.1") is None, "reserved for documents: nobody's"


def test_the_store_is_reached_by_its_own_network_alone() -> None:
    """Torch would listen on every network of the machine, and asks nobody for a key."""
    store = open_store(LOOPBACK, 2)
    listening = {each.laddr for each in psutil.Process().net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert [address.ip for address in listening if address.port == store.port] == [LOOPBACK]

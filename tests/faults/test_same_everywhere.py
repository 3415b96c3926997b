"""The same file gives the same sweep: on any number of slots, on Ray's nodes, and after kills.

Decisions must come in the same order with the same fields; all tables must be equal to the last digit, but for times.
`make test-canonical` runs every kind everywhere, with twenty kills each; by default each kind runs once more.
"""

import random
from collections.abc import Callable, Iterator

import pytest

from tests.faults.cluster import local_cluster
from tests.faults.same_sweeps import EVERY, Outcome, Place, check_journal, run, space_of
from tests.seeds import drawn_seed

SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]
Check = Callable[[str, Place], list[str]]


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Run a kind of sweep somewhere and compare it with the same sweep on one slot; return when kills fell."""
    expected, rng = dict[str, Outcome](), random.Random(drawn_seed())

    def checked(kind: str, place: Place) -> list[str]:
        folder = tmp_path_factory.mktemp(kind)
        space = space_of(folder, kind)
        if kind not in expected:
            expected[kind] = Outcome.of(run(space, folder / "one_slot", Place(), rng)[0])
        paths, fallen = run(space, folder / "again", place, rng)
        check_journal(space, paths)
        expected[kind].check_equal(Outcome.of(paths), (kind, place, fallen))
        return fallen

    return checked


@pytest.mark.integration
@pytest.mark.parametrize("slots", [3, *(pytest.param(slots, marks=SLOW) for slots in (2, 5))])
@pytest.mark.parametrize("kind", EVERY)
def test_slots(check: Check, kind: str, slots: int) -> None:
    check(kind, Place((slots,)))


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with local_cluster(2, tmp_path_factory.mktemp("cluster")) as cluster:
        yield {**cluster.environment, "RAY_ADDRESS": cluster.address}


@pytest.mark.integration
@pytest.mark.parametrize("kind", [EVERY[0], *(pytest.param(kind, marks=SLOW) for kind in EVERY[1:])])
def test_two_nodes(check: Check, two_nodes: dict[str, str], kind: str) -> None:
    check(kind, Place(executor="ray", environment=two_nodes))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=SLOW) for kind in EVERY])
def test_twenty_kills(check: Check, kind: str) -> None:
    fallen = list[str]()
    while len(fallen) < 20:
        fallen += check(kind, Place((1, 2, 3, 5), kills=20 - len(fallen)))

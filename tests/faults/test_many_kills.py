"""Drivers of many kinds of sweeps killed again and again: every table ends equal to that of an undisturbed sweep.

Kills come by progress (`tests.faults.processes.Moments`), several in a sweep, each followed by a resume on another
number of slots, until KILLS of them have fallen on a kind. `make test-kills KILLS=100` is the whole test; each kind
gets three by default. Lanes round differently beside other lanes, so their sweeps keep one slot.
"""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.same_sweeps import KINDS, Outcome, Place, check_journal, run, space_of
from tests.seeds import drawn_seed

KILLS = int(os.environ.get("KILLS", "3"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_every_table_equals_that_of_an_undisturbed_sweep(tmp_path: Path, kind: str) -> None:
    _tables_are_equal(tmp_path, kind, Place((1,) if "lanes" in kind else (1, 2, 3, 5)))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("executor", ["local", "ray"])
@pytest.mark.parametrize("kind", ["final", "final_lanes"])
def test_kills_in_the_final_stage(tmp_path: Path, kind: str, executor: str) -> None:
    _tables_are_equal(tmp_path, kind, Place(executor=executor, late=True))


def _tables_are_equal(tmp_path: Path, kind: str, place: Place) -> None:
    """Kill drivers of sweeps until `KILLS` have fallen, and compare each sweep with an undisturbed one."""
    rng, space = random.Random(f"{drawn_seed()} {kind} {place.executor}"), space_of(tmp_path, kind)
    expected, fallen, number = Outcome.of(run(space, tmp_path / "undisturbed", Place(), rng)[0]), list[str](), 0
    while len(fallen) < KILLS:
        left = replace(place, kills=KILLS - len(fallen))
        paths, moments = run(space, tmp_path / f"disturbed{number}", left, rng)
        number += 1
        fallen += moments
        check_journal(space, paths)
        expected.check_equal(Outcome.of(paths), (number, moments))
        print(f"{kind} on {place.executor}: sweep {number}, {len(fallen)} kills so far; {', '.join(moments)}")

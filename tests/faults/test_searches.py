"""Drivers of a search killed by SIGKILL: nothing that was suggested is lost, and no number has two configurations.

As in `tests.faults.test_kills`; one more moment to strike is right after a suggestion was journaled, before its trial
has begun. With one trial at a time a search that was killed chooses what the undisturbed one chose, bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.disturbed import Disturbed, here
from tests.faults.reference import SMALL
from tests.running import kill, write_space
from tests.seeds import drawn_seed

FULL = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = SMALL.replace("retries: 100", "retries: 100\nsearcher: {name: optuna, startup: 4}") % {"samples": 8}
    return write_space(tmp_path_factory.mktemp("space"), text, "searched")


@pytest.mark.parametrize(("cpus", "kills"), [pytest.param(cpus, 20, marks=FULL) for cpus in "12"])
def test_a_killed_driver_of_a_search(space: Path, tmp_path: Path, cpus: str, kills: int) -> None:
    seed = drawn_seed()
    print(f"kill moments drawn with seed {seed}")
    disturbed = Disturbed(space, tmp_path, seed, "--cpus", cpus)
    disturbed.fatal(kills, kill, here)

"""When another try follows a failure, and how long it waits; whose full disk ends the sweep."""

import errno
import os
import shutil
from collections import namedtuple
from itertools import pairwise
from pathlib import Path

import pytest

from sweeper.execution.driver.judging import (
    LEAST_BYTES,
    LITTLE_MEMORY,
    LONGEST_PAUSE,
    FullDisks,
    memory_failure,
    pause_before,
    waits,
)
from trainables.files import atomic
from trainables.worker.trial_reports import STORAGE, Failure


@pytest.mark.parametrize(("held", "blamed"), [(LITTLE_MEMORY / 2, False), (LITTLE_MEMORY, True), (1.0, True)])
def test_what_held_little_memory_waits_and_is_not_to_blame(held: float, blamed: bool) -> None:
    failure = memory_failure(held)
    assert failure.counts is blamed and waits(failure) is not blamed


def test_pauses_double_and_are_bounded() -> None:
    pauses = [pause_before(tries) for tries in range(100)]
    assert all(later == min(2 * one, LONGEST_PAUSE) for one, later in pairwise(pauses)) and pauses[0] > 0


Usage = namedtuple("Usage", "total used free")
ELSEWHERE = Failure(STORAGE, {"node": "ab"}, "its disk is full", counts=False)


def test_a_nodes_full_disk_is_avoided_as_long_as_there_are_others(tmp_path: Path) -> None:
    disks = FullDisks(tmp_path, lambda avoided: avoided < {"ab", "cd"})
    assert disks.met(ELSEWHERE) is None and disks.nodes == {"ab"}
    last = Failure(STORAGE, {"node": "cd"}, counts=False)
    assert disks.met(last) == last.having(others="no")
    assert list(tmp_path.iterdir()) == [], "the probe is gone"


def test_without_a_node_it_is_the_drivers_own(tmp_path: Path) -> None:
    disks = FullDisks(tmp_path, lambda avoided: True)
    assert disks.met(Failure(STORAGE)) == Failure(STORAGE) and not disks.nodes


def test_a_folder_that_is_almost_full_is_the_drivers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**12, 0, LEAST_BYTES - 1))
    assert FullDisks(tmp_path, lambda avoided: True).met(ELSEWHERE) == ELSEWHERE


def test_a_folder_that_cannot_be_written_is_the_drivers_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert FullDisks(tmp_path, lambda avoided: True).met(ELSEWHERE) == ELSEWHERE
    assert not any(atomic.is_temporary(path.name) for path in tmp_path.iterdir())

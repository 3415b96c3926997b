"""Whose disk is full decides what follows: the end of the sweep, or a node to keep away from."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from sweeper.execution.driver.judging import LEAST_BYTES, FullDisks
from trainables.files import atomic
from trainables.worker.trial_reports import STORAGE, Failure

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
